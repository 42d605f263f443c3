"""Jobs as their tenant sees them: creating, reading, cancelling, events and checkpoints. Workers use `app.db.queue`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import case, func, null, select, update
from sqlalchemy.orm import Session

from app.contracts.merge import MergeConfig
from app.contracts.training import PRIORITIES, JobConfig, JobKind, JobStatus, Priority
from app.core.ids import new_id
from app.db.repositories import queue_accounts
from app.db.repositories.paging import Order, fetch_page
from app.db.tables import Job, JobCheckpoint, JobEvent, db_now

MAX_EVENT_CHARACTERS = 2000


@dataclass(frozen=True)
class NewEvent:
    """A line for a job's history; a metrics event carries StepMetrics as data."""

    message: str
    level: Literal["info", "warn", "error"] = "info"
    type: Literal["message", "metrics"] = "message"
    data: Mapping[str, object] | None = None


def create(
    session: Session,
    tenant_id: str,
    *,
    kind: JobKind | Literal["merge"],
    model: str,
    base_model: str,
    adapter_name: str,
    adapter_id: str | None = None,
    parent_version_id: str | None = None,
    training_file: str | None = None,
    validation_file: str | None = None,
    retention_file: str | None = None,
    training_blob_id: str,
    validation_blob_id: str | None = None,
    retention_blob_id: str | None = None,
    config: JobConfig | MergeConfig,
    request: Mapping[str, object],
    trainable_parameters: int,
    optimizer_bytes: int,
    priority: Priority = "normal",
) -> Job:
    """Queue a job with its first event. The ids it names must be the tenant's own, looked up in this transaction."""
    job = Job(
        id=new_id("ftjob"),
        tenant_id=tenant_id,
        kind=kind,
        priority=PRIORITIES.index(priority),
        model=model,
        base_model=base_model,
        adapter_name=adapter_name,
        adapter_id=adapter_id,
        parent_version_id=parent_version_id,
        training_file=training_file,
        validation_file=validation_file,
        retention_file=retention_file,
        training_blob_id=training_blob_id,
        validation_blob_id=validation_blob_id,
        retention_blob_id=retention_blob_id,
        config=config.model_dump(mode="json"),
        request=dict(request),
        trainable_parameters=trainable_parameters,
        optimizer_bytes=optimizer_bytes,
    )
    session.add(job)
    session.flush()
    queue_accounts.join(session, tenant_id, base_model)
    add_event(session, tenant_id, job.id, NewEvent("Job created and queued"))
    session.refresh(job)
    return job


def get(session: Session, tenant_id: str, job_id: str) -> Job | None:
    """Return the job, or None."""
    return session.scalar(select(Job).where(Job.id == job_id, Job.tenant_id == tenant_id))


def list(
    session: Session,
    tenant_id: str,
    *,
    kind: JobKind | None = None,
    metadata: Mapping[str, str] | Literal["none"] | None = None,
    after: str | None = None,
    limit: int = 20,
    order: Order = "desc",
) -> tuple[Sequence[Job], bool]:
    """Return a page of the tenant's jobs and whether more follow.

    `metadata` keeps the jobs that have all its pairs, or, as "none", those without any. Its keys hold no quote and no
    backslash.
    """
    query = select(Job).where(Job.tenant_id == tenant_id)
    if kind is not None:
        query = query.where(Job.kind == kind)
    if metadata == "none":
        query = query.where(Job.request["metadata"].as_string().is_(None))
    elif metadata is not None:
        query = query.where(*(Job.request[("metadata", k)].as_string() == v for k, v in metadata.items()))
    return fetch_page(session, query, Job.id, after=after, limit=limit, order=order)


def count(session: Session, tenant_id: str, *statuses: JobStatus) -> int:
    """Return how many of the tenant's jobs are in one of `statuses`."""
    query = select(func.count()).select_from(Job).where(Job.tenant_id == tenant_id, Job.status.in_(statuses))
    return session.scalar(query) or 0


def request_cancel(session: Session, tenant_id: str, job_id: str) -> Job | None:
    """Cancel the job: at once when it waits, by its worker's next heartbeat when running, not at all when it has ended.

    Returns the job as it now is, or None when the tenant has no such job.
    """
    waiting = Job.status.in_(["queued", "paused"])
    cancelled = session.scalar(
        update(Job)
        .where(Job.id == job_id, Job.tenant_id == tenant_id, Job.status.in_(["queued", "paused", "running"]))
        .values(
            cancel_requested=True,
            status=case((waiting, "cancelled"), else_=Job.status),
            finished_at=case((waiting, db_now()), else_=null()),
        )
        .returning(Job.status)
        .execution_options(synchronize_session=False)
    )
    if cancelled == "cancelled":
        add_event(session, tenant_id, job_id, NewEvent("Job cancelled while it waited"))
    elif cancelled == "running":
        add_event(session, tenant_id, job_id, NewEvent("Cancellation requested"))
    query = select(Job).where(Job.id == job_id, Job.tenant_id == tenant_id)
    return session.scalar(query.execution_options(populate_existing=True))


def add_event(session: Session, tenant_id: str, job_id: str, event: NewEvent) -> JobEvent:
    """Append a line to the job's history; a message beyond 2000 characters is cut."""
    row = JobEvent(
        id=new_id("ftevent"),
        tenant_id=tenant_id,
        job_id=job_id,
        level=event.level,
        type=event.type,
        message=event.message[:MAX_EVENT_CHARACTERS],
        data=None if event.data is None else dict(event.data),
    )
    session.add(row)
    session.flush()
    return row


def events(
    session: Session, tenant_id: str, job_id: str, *, after: str | None = None, limit: int = 20, order: Order = "desc"
) -> tuple[Sequence[JobEvent], bool]:
    """Return a page of the job's events and whether more follow."""
    query = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.tenant_id == tenant_id)
    return fetch_page(session, query, JobEvent.id, after=after, limit=limit, order=order)


def checkpoints(
    session: Session, tenant_id: str, job_id: str, *, after: str | None = None, limit: int = 10, order: Order = "desc"
) -> tuple[Sequence[JobCheckpoint], bool]:
    """Return a page of the job's checkpoints and whether more follow."""
    query = select(JobCheckpoint).where(JobCheckpoint.job_id == job_id, JobCheckpoint.tenant_id == tenant_id)
    return fetch_page(session, query, JobCheckpoint.id, after=after, limit=limit, order=order)
