"""How a job ends, or goes back. Publishing is one transaction: job, bytes, version and active pointer, or nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import case, null, update
from sqlalchemy.orm import Session

from app.contracts.training import JobStatus, TrainingResult
from app.db.blobs import delete_blob_if_unused
from app.db.queue.accounts import charge_tokens
from app.db.queue.lease import Lease, fence
from app.db.queue.leftovers import drop_leftovers
from app.db.queue.staging import seal, stage_if_large
from app.db.repositories import adapters, queue_accounts
from app.db.repositories.jobs import NewEvent, add_event
from app.db.session import Database
from app.db.tables import Adapter, AdapterVersion, Blob, Job, db_now


class PublishError(Exception):
    """The weights could not become a version; the job has been failed with this code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True)
class NewVersion:
    """What is published: safetensors bytes, PEFT configuration and the metrics shown with the version."""

    weights: bytes
    config: Mapping[str, object]
    metrics: Mapping[str, object]


def finish_succeeded(
    db: Database, lease: Lease, result: TrainingResult, version: NewVersion | None
) -> AdapterVersion | None:
    """End the job well and publish `version`, all or nothing. None is a run that was rolled back: nothing to publish.

    Raises StaleLeaseError when fenced out, and PublishError, the job then being failed, when its adapter was deleted
    meanwhile or its name belongs to an adapter on another base model.
    """
    refusal = None
    published = None
    staged = None if version is None else stage_if_large(db, lease, version.weights)
    with db.write() as session:
        fence(session, lease)
        blob = None if staged is None else seal(session, lease.tenant_id, staged)
        end(session, lease, "succeeded", result=result.model_dump())
        charge_tokens(session, lease, result.trained_tokens)
        if version is None or blob is None:
            rolled_back = NewEvent(f"Nothing published, rolled back: {result.rollback_reason}", "warn")
            add_event(session, lease.tenant_id, lease.job_id, rolled_back)
        else:
            try:
                published = _publish(session, lease, version, blob)
            except PublishError as error:
                refusal = error
                delete_blob_if_unused(session, lease.tenant_id, blob.id)
                _refuse(session, lease, error)
    if refusal is not None:
        raise refusal
    return published


def finish_failed(db: Database, lease: Lease, error: Mapping[str, object]) -> None:
    """End the job with `error` {code, message, param}. Raises StaleLeaseError."""
    with db.write() as session:
        end(session, lease, "failed", error=dict(error))
        add_event(session, lease.tenant_id, lease.job_id, NewEvent(f"Job failed: {error['message']}", "error"))


def finish_cancelled(db: Database, lease: Lease) -> None:
    """End the job because its tenant asked for it. Raises StaleLeaseError."""
    with db.write() as session:
        end(session, lease, "cancelled")
        add_event(session, lease.tenant_id, lease.job_id, NewEvent("Job cancelled"))


def give_back(db: Database, lease: Lease) -> None:
    """Return an unfinished job at no charge: for a worker that shuts down, or for a pause. Raises StaleLeaseError.

    It is paused if that was asked for, cancelled if that was, else back in the queue; the next worker resumes from the
    last snapshot.
    """
    with db.write() as session:
        asked = fence(
            session,
            lease,
            status=case((Job.cancel_requested, "cancelled"), (Job.pause_requested, "paused"), else_="queued"),
            finished_at=case((Job.cancel_requested, db_now()), else_=null()),
            attempts=Job.attempts - 1,
            lease_owner=None,
            lease_expires_at=None,
        )
        if asked.cancel:
            drop_leftovers(session, lease.tenant_id, lease.job_id)
        elif not asked.pause:
            queue_accounts.join(session, lease.tenant_id, session.get_one(Job, lease.job_id).base_model)
        done = "Job cancelled" if asked.cancel else "Job paused" if asked.pause else "Given back: in the queue again"
        add_event(session, lease.tenant_id, lease.job_id, NewEvent(done))


def end(session: Session, lease: Lease, status: JobStatus, **changes: object) -> None:
    """End the job, as the first statement of its transaction. Raises StaleLeaseError."""
    ended = {"status": status, "finished_at": db_now(), "lease_owner": None, "lease_expires_at": None}
    fence(session, lease, **ended, **changes)
    drop_leftovers(session, lease.tenant_id, lease.job_id)


def _publish(session: Session, lease: Lease, new: NewVersion, blob: Blob) -> AdapterVersion:
    job = session.get_one(Job, lease.job_id)
    adapter = _target(session, job)
    version = adapters.add_version(
        session,
        job.tenant_id,
        adapter,
        weights=blob,
        config=new.config,
        metrics=new.metrics,
        job_id=job.id,
        parent_version=_parent_number(session, job, adapter),
    )
    session.execute(update(Job).where(Job.id == job.id).values(adapter_id=adapter.id, result_version_id=version.id))
    message = f"Job succeeded: version {version.version} of adapter {adapter.name} is active"
    add_event(session, job.tenant_id, job.id, NewEvent(message))
    return version


def _target(session: Session, job: Job) -> Adapter:
    if job.adapter_id is not None:
        adapter = adapters.get(session, job.tenant_id, job.adapter_id, hold=True)
        if adapter is None:
            raise PublishError("adapter_deleted", f"adapter {job.adapter_name!r} was deleted while the job ran")
        return adapter
    try:
        return adapters.get_or_create(session, job.tenant_id, name=job.adapter_name, base_model=job.base_model)
    except adapters.AdapterConflictError as error:
        raise PublishError("adapter_conflict", str(error)) from error


def _parent_number(session: Session, job: Job, adapter: Adapter) -> int | None:
    if job.parent_version_id is None:
        return None
    parent = adapters.get_version_by_id(session, job.tenant_id, job.parent_version_id)
    return parent.version if parent is not None and parent.adapter_id == adapter.id else None


def _refuse(session: Session, lease: Lease, error: PublishError) -> None:
    document = {"code": error.code, "message": error.message, "param": "adapter"}
    failed = update(Job).where(Job.id == lease.job_id, Job.tenant_id == lease.tenant_id)
    session.execute(failed.values(status="failed", error=document, result=None))
    add_event(session, lease.tenant_id, lease.job_id, NewEvent(f"Job failed: {error.message}", "error"))
