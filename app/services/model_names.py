"""What a model name means to one tenant: a base, an adapter's version, or a job's checkpoint, resolved once.

Names: `base`, `adapter` (its active version), `adapter@3`, `ft:{base}:{tenant}:{adapter}:{version}` and
`ft:{base}:{tenant}:{adapter}:{job id}:step-{n}`.
"""

import re
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.contracts.adapters import AdapterRef
from app.contracts.base_models import BaseModelInfo
from app.core.errors import InvalidRequestError, NotFoundError, not_found
from app.db.repositories import adapters, base_models, jobs
from app.db.tables import Adapter, AdapterVersion, JobCheckpoint

ADAPTER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,63})(@(?P<version>[1-9][0-9]{0,8}))?")
_FINE_TUNED = re.compile(
    r"ft:(?P<base>[\w.-]+):(?P<tenant>[\w.-]+):(?P<adapter>[\w.-]+):"
    r"((?P<version>[1-9][0-9]{0,8})|(?P<job>[\w.-]+):step-(?P<step>[0-9]{1,9}))",
    re.ASCII,
)


@dataclass(frozen=True)
class ResolvedModel:
    """A name resolved. `name` pins what it resolved to, so that an answer says which version gave it."""

    name: str
    info: BaseModelInfo
    created_at: float
    adapter: Adapter | None = None
    version: AdapterVersion | None = None
    checkpoint: JobCheckpoint | None = None

    @property
    def ref(self) -> AdapterRef | None:
        """The adapter weights to serve with, or None for the base alone."""
        held = self.version or self.checkpoint
        if held is None:
            return None
        return AdapterRef(
            tenant_id=held.tenant_id,
            adapter_id=held.adapter_id if isinstance(held, AdapterVersion) else held.job_id,
            version_id=held.id,
            weights_id=held.weights_id,
            config=dict(held.config),
        )


def version_name(base_model: str, tenant_id: str, adapter: str, version: int) -> str:
    """Return a version's `ft:` name."""
    return f"ft:{base_model}:{tenant_id}:{adapter}:{version}"


def checkpoint_name(base_model: str, tenant_id: str, adapter: str, job_id: str, step: int) -> str:
    """Return a checkpoint's `ft:` name."""
    return f"ft:{base_model}:{tenant_id}:{adapter}:{job_id}:step-{step}"


def resolve_model(session: Session, tenant_id: str, name: str) -> ResolvedModel:
    """Return what `name` means. Raises NotFoundError, with the same words for what belongs to another tenant."""
    if match := _FINE_TUNED.fullmatch(name):
        return _fine_tuned(session, tenant_id, name, match)
    if match := _PINNED.fullmatch(name):
        if match["version"] is None and (base := base_models.get(session, name)):
            return ResolvedModel(name, base_models.info_of(base), base.created_at)
        return _adapter(session, tenant_id, name, match["name"], match["version"])
    raise _unknown(name)


def hosted_base(session: Session, base_model: str, *, param: str) -> BaseModelInfo:
    """Return a base model that some worker has registered. Raises NotFoundError."""
    row = base_models.get(session, base_model) if re.fullmatch(ADAPTER_NAME, base_model) else None
    if row is None:
        raise not_found("model", base_model, param=param)
    return base_models.info_of(row)


def _unknown(name: str) -> NotFoundError:
    return not_found("model", name, param="model")


def _info(session: Session, base_model: str, name: str) -> BaseModelInfo:
    row = base_models.get(session, base_model)
    if row is None:
        raise _unknown(name)
    return base_models.info_of(row)


def _adapter(session: Session, tenant_id: str, name: str, adapter_name: str, version: str | None) -> ResolvedModel:
    adapter = adapters.get_by_name(session, tenant_id, adapter_name)
    if adapter is None:
        raise _unknown(name)
    number = int(version) if version else adapter.active_version
    if number is None:
        raise InvalidRequestError(f"{name} has no version yet", code="no_active_version", param="model")
    held = adapters.get_version(session, tenant_id, adapter.id, number)
    if held is None:
        raise _unknown(name)
    info = _info(session, adapter.base_model, name)
    return ResolvedModel(f"{adapter.name}@{number}", info, held.created_at, adapter, held)


def _fine_tuned(session: Session, tenant_id: str, name: str, match: re.Match[str]) -> ResolvedModel:
    if match["tenant"] != tenant_id:
        raise _unknown(name)
    adapter = adapters.get_by_name(session, tenant_id, match["adapter"])
    info = _info(session, match["base"], name)
    if match["job"] is not None:
        checkpoint = _checkpoint(session, tenant_id, name, match)
        return ResolvedModel(name, info, checkpoint.created_at, adapter, checkpoint=checkpoint)
    if adapter is None or adapter.base_model != match["base"]:
        raise _unknown(name)
    held = adapters.get_version(session, tenant_id, adapter.id, int(match["version"]))
    if held is None:
        raise _unknown(name)
    return ResolvedModel(name, info, held.created_at, adapter, held)


def _checkpoint(session: Session, tenant_id: str, name: str, match: re.Match[str]) -> JobCheckpoint:
    job = jobs.get(session, tenant_id, match["job"])
    if job is None or job.adapter_name != match["adapter"] or job.base_model != match["base"]:
        raise _unknown(name)
    held = adapters.get_checkpoint(session, tenant_id, job.id, int(match["step"]))
    if held is None:
        raise _unknown(name)
    return held
