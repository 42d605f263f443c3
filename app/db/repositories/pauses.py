"""Pausing and resuming jobs, as their tenant asks for it. A running job is paused by its worker."""

from sqlalchemy import case, select, update
from sqlalchemy.orm import Session

from app.db.repositories import queue_accounts
from app.db.repositories.jobs import NewEvent, add_event
from app.db.tables import Job


def request(session: Session, tenant_id: str, job_id: str) -> Job | None:
    """Pause the job: at once when queued, after its worker's current step when running, not at all when it has ended.

    Returns the job as it now is, or None when the tenant has no such job.
    """
    status = session.scalar(
        update(Job)
        .where(Job.id == job_id, Job.tenant_id == tenant_id, Job.status.in_(["queued", "running"]))
        .where(Job.pause_requested.is_(False), Job.cancel_requested.is_(False))
        .values(pause_requested=True, status=case((Job.status == "queued", "paused"), else_=Job.status))
        .returning(Job.status)
        .execution_options(synchronize_session=False)
    )
    if status is not None:
        message = "Job paused" if status == "paused" else "Pause requested"
        add_event(session, tenant_id, job_id, NewEvent(message))
    return _reread(session, tenant_id, job_id)


def resume(session: Session, tenant_id: str, job_id: str) -> Job | None:
    """Queue a paused job again, or withdraw a pause that its worker has not come to yet; others stay as they are.

    Returns the job as it now is, or None when the tenant has no such job.
    """
    row = session.execute(
        update(Job)
        .where(Job.id == job_id, Job.tenant_id == tenant_id, Job.status.in_(["paused", "running"]))
        .where(Job.pause_requested.is_(True))
        .values(pause_requested=False, status=case((Job.status == "paused", "queued"), else_=Job.status))
        .returning(Job.status, Job.base_model)
        .execution_options(synchronize_session=False)
    ).first()
    if row is not None:
        status, base_model = row
        if status == "queued":
            queue_accounts.join(session, tenant_id, base_model)
        message = "Back in the queue" if status == "queued" else "Pause withdrawn"
        add_event(session, tenant_id, job_id, NewEvent(message))
    return _reread(session, tenant_id, job_id)


def _reread(session: Session, tenant_id: str, job_id: str) -> Job | None:
    query = select(Job).where(Job.id == job_id, Job.tenant_id == tenant_id)
    return session.scalar(query.execution_options(populate_existing=True))
