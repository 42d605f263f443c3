"""What a worker reports while a job runs: metrics, events and checkpoints."""

from collections.abc import Mapping, Sequence

from sqlalchemy import select

from app.contracts.training import StepMetrics
from app.core.ids import new_id
from app.db.blobs import write_blob
from app.db.queue.accounts import charge_tokens
from app.db.queue.lease import Asked, Lease, fence
from app.db.repositories.jobs import NewEvent, add_event
from app.db.session import Database
from app.db.tables import JobCheckpoint


def record_progress(db: Database, lease: Lease, metrics: StepMetrics | None, events: Sequence[NewEvent] = ()) -> Asked:
    """Store the newest metrics, if any, with their tokens charged, and append events.

    Returns what the tenant has asked for. Raises StaleLeaseError.
    """
    with db.write() as session:
        asked = fence(session, lease, **({} if metrics is None else {"progress": metrics.model_dump()}))
        if metrics is not None:
            charge_tokens(session, lease, metrics.tokens)
        for event in events:
            add_event(session, lease.tenant_id, lease.job_id, event)
        return asked


def save_checkpoint(  # noqa: PLR0917 - the order of the columns
    db: Database,
    lease: Lease,
    step: int,
    weights: bytes,
    config: Mapping[str, object],
    metrics: Mapping[str, object],
) -> JobCheckpoint:
    """Store servable weights of the end of an epoch. One of the same step stays as it is: checkpoints never change.

    Raises StaleLeaseError.
    """
    with db.write() as session:
        fence(session, lease)
        existing = session.scalar(
            select(JobCheckpoint).where(JobCheckpoint.job_id == lease.job_id, JobCheckpoint.step == step)
        )
        if existing is not None:
            return existing
        checkpoint = JobCheckpoint(
            id=new_id("ftckpt"),
            tenant_id=lease.tenant_id,
            job_id=lease.job_id,
            step=step,
            weights_id=write_blob(session, lease.tenant_id, weights).id,
            config=dict(config),
            metrics=dict(metrics),
        )
        session.add(checkpoint)
        session.flush()
        session.refresh(checkpoint)
        return checkpoint
