"""Plans merges: a version folded into its base by a worker, and kept as a file of the tenant."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.contracts.merge import MergeConfig, MergeFormat
from app.core.errors import UnavailableError
from app.db.repositories import jobs, workers
from app.db.tables import Adapter, AdapterVersion, Job
from app.services.adapters import get_adapter, get_version
from app.services.jobs import Once, queue_once
from app.services.model_names import hosted_base
from app.services.whole_models import merged_bytes, refuse_larger

RETRY_SECONDS = 30


@dataclass(frozen=True)
class MergePlan:
    """A merge that has passed every check, not yet queued."""

    adapter: Adapter
    version: AdapterVersion
    config: MergeConfig
    request: Mapping[str, object]


def plan_merge(
    session: Session,
    tenant_id: str,
    *,
    name: str,
    version: int,
    form: MergeFormat,
    request: Mapping[str, object],
    max_bytes: int,
    alive_seconds: float,
) -> MergePlan:
    """Return a checked plan; writes nothing.

    Raises NotFoundError, InvalidRequestError when the merged model would be too large, and UnavailableError while no
    worker that was heard of in the last `alive_seconds` hosts the base.
    """
    adapter, held = get_adapter(session, tenant_id, name), get_version(session, tenant_id, name, version)
    info = hosted_base(session, adapter.base_model, param="name")
    if all(worker.base_model != info.id for worker in workers.alive(session, alive_seconds)):
        raise UnavailableError(
            f"No worker hosts {info.id} now, and a merge needs its weights; start one or try again later",
            code="base_model_not_hosted",
            retry_after=RETRY_SECONDS,
        )
    refuse_larger(merged_bytes(info), max_bytes, what=f"{name}@{version} merged into {info.id}", param="format")
    return MergePlan(adapter, held, MergeConfig(format=form, version=version, max_bytes=max_bytes), request)


def enqueue_merge(session: Session, tenant_id: str, plan: MergePlan, request: Once | None, *, max_queued: int) -> Job:
    """Queue the planned merge, or return the one that the same request made meanwhile. Raises QuotaError."""

    def create() -> Job:
        return jobs.create(
            session,
            tenant_id,
            kind="merge",
            model=f"{plan.adapter.name}@{plan.version.version}",
            base_model=plan.adapter.base_model,
            adapter_name=plan.adapter.name,
            adapter_id=plan.adapter.id,
            parent_version_id=plan.version.id,
            training_blob_id=plan.version.weights_id,
            config=plan.config,
            request=plan.request,
            trainable_parameters=0,
            optimizer_bytes=0,
        )

    return queue_once(session, tenant_id, create, request, max_queued=max_queued)
