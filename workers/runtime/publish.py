"""Makes a run's outcome visible: checkpoints on the way, and the one fenced transaction at the end."""

import structlog

from app.contracts.base_models import BaseModelInfo
from app.db import queue
from app.db.queue import ClaimedJob, Lease, NewVersion
from app.db.session import Database
from app.db.tables import AdapterVersion
from workers.lora.adapter_file import to_peft
from workers.runtime.fault_points import FaultPoints
from workers.runtime.retry import DATABASE_AWAY, Pauses, patiently
from workers.training.events import EpochDone, Finished

log = structlog.get_logger()


def save_checkpoint(database: Database, lease: Lease, info: BaseModelInfo, event: EpochDone) -> None:
    """Keep an epoch's weights, unless they are a whole model; while the database is away, go without.

    Raises StaleLeaseError.
    """
    if event.adapter.own:
        return
    config, weights = to_peft(event.adapter, info)
    metrics: dict[str, object] = {"step": event.step, "train_loss": event.loss}
    try:
        queue.save_checkpoint(database, lease, event.step, weights, config, metrics)
    except DATABASE_AWAY as error:
        log.warning("checkpoint skipped", job=lease.job_id, step=event.step, error=str(error.orig))


def publish(
    database: Database, job: ClaimedJob, info: BaseModelInfo, event: Finished, faults: FaultPoints, *, patience: float
) -> Pauses[None]:
    """Finish the job and, unless it was rolled back, make its adapter the active version, in one transaction.

    Raises StaleLeaseError when the job is no longer ours, also when an earlier try was committed but not answered.
    """
    faults.hit("publish.before")
    version = _new_version(info, event)

    def finish() -> AdapterVersion | None:
        with faults.at_commit("publish.before_commit"):
            return queue.finish_succeeded(database, job.lease, event.result, version)

    published = yield from patiently(finish, what="publish", patience=patience)
    faults.hit("publish.after")
    log.info("job succeeded", job=job.lease.job_id, version=None if published is None else published.version)


def _new_version(info: BaseModelInfo, event: Finished) -> NewVersion | None:
    if event.adapter is None:
        return None
    config, weights = to_peft(event.adapter, info)
    return NewVersion(weights=weights, config=config, metrics=event.result.model_dump(mode="json"))
