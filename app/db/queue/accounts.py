"""What a job costs its tenant in the queue: the tokens it trains, each once.

A claim is charged as its job's first tokens before any is trained, so that a burst of claims spreads over the tenants.
"""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.db.queue.lease import Lease
from app.db.repositories import queue_accounts, tenants
from app.db.tables import Job

CLAIM_TOKENS = 1024
"""What a job is charged at its first claim; the tokens it trains count from there on."""


def charge_claim(session: Session, job: Job) -> None:
    """Charge a job's first claim; claiming it again costs nothing. `job` is as it was before the claim."""
    if job.started_at is None:
        queue_accounts.charge(session, job.tenant_id, job.base_model, CLAIM_TOKENS)


def charge_tokens(session: Session, lease: Lease, trained: int) -> None:
    """Charge what the job has trained beyond what was charged before, in a transaction that holds the job's row.

    `trained` counts from the start of the run; less than was reported before, after a lost worker, costs nothing.
    """
    mine = (Job.id == lease.job_id, Job.tenant_id == lease.tenant_id)
    base_model, before = session.execute(select(Job.base_model, Job.trained_tokens).where(*mine)).one()
    if trained <= before:
        return
    counted = update(Job).where(*mine).values(trained_tokens=trained)
    session.execute(counted.execution_options(synchronize_session=False))
    tokens = max(trained, CLAIM_TOKENS) - max(before, CLAIM_TOKENS)
    queue_accounts.charge(session, lease.tenant_id, base_model, tokens)
    tenants.count_tokens(session, lease.tenant_id, trained - before)
