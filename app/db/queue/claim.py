"""Claiming: which job a worker gets next.

First a job whose worker was lost: it had its turn before. Then tenants take turns by the tokens trained for them; of a
tenant's jobs the one of the highest priority comes first, then the oldest.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Float, Select, bindparam, func, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningUpdate

from app.contracts.merge import MergeConfig
from app.contracts.training import JobConfig, JobKind
from app.db.queue.accounts import charge_claim
from app.db.queue.lease import ClaimedJob, ClaimedMerge, Lease
from app.db.queue.leftovers import drop_leftovers
from app.db.queue.line import in_turn
from app.db.repositories.jobs import NewEvent, add_event
from app.db.session import Database, lock_name
from app.db.tables import Job, Tenant, db_now

Fits = Callable[[str, JobConfig | MergeConfig], bool]
"""Whether the worker has memory for a job of this kind and configuration."""


def claim(
    db: Database,
    *,
    worker_id: str,
    base_model: str,
    lease_seconds: float,
    max_attempts: int,
    fits: Fits | None = None,
) -> ClaimedJob | ClaimedMerge | None:
    """Take the next job of `base_model`: a queued one, or one whose worker let its lease expire. None when idle.

    Jobs met on the way that used up their attempts are failed, and those that were to be cancelled are. Where the job
    in turn does not fit, nothing is claimed: it is not for smaller ones to overtake it again and again.
    """
    with db.write() as session:
        lock_name(session, "claim", base_model)
        job = _lost(session, base_model, max_attempts) or _in_turn(session, base_model)
        if job is None or (fits is not None and not fits(job.kind, _config(job))):
            return None
        return _take(session, job, worker_id, lease_seconds)


def _lost_job() -> Select[Job]:
    lost = (Job.status == "running", Job.base_model == bindparam("base"), Job.lease_expires_at < db_now())
    return select(Job).where(*lost).order_by(Job.id).limit(1).with_for_update(skip_locked=True, key_share=True)


def _next_job() -> Select[Job]:
    queued = (Job.status == "queued", Job.base_model == bindparam("base"), Job.tenant_id == bindparam("tenant"))
    first = select(Job).where(*queued).order_by(Job.priority, Job.id).limit(1)
    return first.with_for_update(skip_locked=True, key_share=True)


def _take_job() -> ReturningUpdate[Any]:
    changes = {
        "status": "running",
        "attempts": Job.attempts + 1,
        "lease_token": Job.lease_token + 1,
        "lease_owner": bindparam("worker"),
        "lease_expires_at": db_now() + bindparam("lease_seconds", type_=Float(53)),
        "started_at": func.coalesce(Job.started_at, db_now()),
    }
    weight = select(Tenant.weight).where(Tenant.id == Job.tenant_id).scalar_subquery()
    taken = update(Job).where(Job.id == bindparam("job")).values(changes)
    return taken.returning(Job.attempts, Job.lease_token, weight).execution_options(synchronize_session=False)


def _lost(session: Session, base_model: str, max_attempts: int) -> Job | None:
    """Return a lost job that can be tried again, after ending or pausing others."""
    while (job := session.scalar(LOST_JOB, {"base": base_model})) is not None:
        if job.cancel_requested:
            _end(session, job, "cancelled", NewEvent("Job cancelled"))
        elif job.attempts >= max_attempts:
            _give_up(session, job)
        elif job.pause_requested:
            _put_aside(session, job)
        else:
            return job
    return None


def _in_turn(session: Session, base_model: str) -> Job | None:
    for tenant_id in in_turn(session, base_model):
        if (job := session.scalar(NEXT_JOB, {"base": base_model, "tenant": tenant_id})) is not None:
            return job  # Else others hold the rows of all its jobs.
    return None


def _take(session: Session, job: Job, worker_id: str, lease_seconds: float) -> ClaimedJob | ClaimedMerge:
    add_event(session, job.tenant_id, job.id, _started(job))
    taken = {"job": job.id, "worker": worker_id, "lease_seconds": lease_seconds}
    attempts, token, weight = session.execute(TAKE, taken).one()
    charge_claim(session, job)
    lease = Lease(job_id=job.id, tenant_id=job.tenant_id, token=token, worker_id=worker_id)
    if job.kind == "merge":
        assert job.parent_version_id is not None, "a merge is of a version"
        return ClaimedMerge(
            lease=lease,
            config=MergeConfig.model_validate(job.config),
            adapter_name=job.adapter_name,
            version_id=job.parent_version_id,
            attempts=attempts,
            weight=weight,
        )
    kind: JobKind = "fine_tune" if job.kind == "fine_tune" else "adapt"
    return ClaimedJob(
        lease=lease,
        kind=kind,
        base_model=job.base_model,
        config=JobConfig.model_validate(job.config),
        adapter_name=job.adapter_name,
        parent_version_id=job.parent_version_id,
        training_blob_id=job.training_blob_id,
        validation_blob_id=job.validation_blob_id,
        retention_blob_id=job.retention_blob_id,
        attempts=attempts,
        weight=weight,
    )


def _config(job: Job) -> JobConfig | MergeConfig:
    return MergeConfig.model_validate(job.config) if job.kind == "merge" else JobConfig.model_validate(job.config)


def _started(job: Job) -> NewEvent:
    if job.status == "running":
        return NewEvent(f"Its worker stopped responding: taken over, attempt {job.attempts + 1}", level="warn")
    return NewEvent("Job started" if job.started_at is None else "Job resumed")


def _give_up(session: Session, job: Job) -> None:
    message = f"the worker stopped responding in each of {job.attempts} attempts; the job was given up"
    job.error = {"code": "worker_lost", "message": message, "param": None}
    _end(session, job, "failed", NewEvent(f"Job failed: {message}", level="error"))


def _put_aside(session: Session, job: Job) -> None:
    job.status, job.lease_owner, job.lease_expires_at = "paused", None, None
    session.flush()
    add_event(session, job.tenant_id, job.id, NewEvent("Job paused"))


def _end(session: Session, job: Job, status: str, event: NewEvent) -> None:
    job.status, job.lease_owner, job.lease_expires_at = status, None, None
    job.finished_at = session.scalar(select(db_now()))
    session.flush()
    add_event(session, job.tenant_id, job.id, event)
    drop_leftovers(session, job.tenant_id, job.id)


LOST_JOB, NEXT_JOB, TAKE = _lost_job(), _next_job(), _take_job()
"""A job of `:base` whose worker let its lease expire, and the next one of `:tenant`: each locks its row and passes over
rows that others have locked. And the claim of `:job`: its attempts, token and tenant's weight.
"""
