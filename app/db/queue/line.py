"""The line of a base model: which tenant workers serve next.

The tenant who has had least for its weight comes first, then who has been in line longest. So a tenant in line waits
for at most one claim of each other tenant, and one more for each claim's worth that it has had more than the other.
Tenants enter the line when a job of theirs is queued; who has no job left is let go when its turn comes.
"""

from collections.abc import Collection

from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session

from app.db.tables import Job, QueueAccount


def first_in_line(session: Session, base_model: str, passed: Collection[str]) -> str | None:
    """Return the tenant in turn who has a queued job, besides those `passed` over, or None.

    Call it under the lock for claiming jobs of the base model.
    """
    while (row := session.execute(front(base_model, passed)).first()) is not None:
        tenant_id, arrivals, waits = row
        if waits:
            return tenant_id
        _let_go(session, base_model, tenant_id, arrivals)
    return None


def front(base_model: str, passed: Collection[str]) -> Select[str, int, bool]:
    """Return the query for the first in line: tenant, arrivals, whether it has a queued job."""
    account = QueueAccount
    queued = (Job.status == "queued", Job.base_model == base_model, Job.tenant_id == account.tenant_id)
    one = select(Job.id).where(*queued).limit(1).scalar_subquery()
    return (
        select(account.tenant_id, account.arrivals, one.is_not(None))
        .where(account.base_model == base_model, account.state == "in_line", account.tenant_id.not_in(passed))
        .order_by(account.had, account.in_line_since, account.tenant_id)
        .limit(1)
    )


def _let_go(session: Session, base_model: str, tenant_id: str, arrivals: int) -> None:
    """Take the tenant out of line, unless another job of it was queued meanwhile, which waits for this row's lock."""
    seen = (QueueAccount.tenant_id == tenant_id, QueueAccount.arrivals == arrivals)
    gone = update(QueueAccount).where(QueueAccount.base_model == base_model, *seen).values(state="away")
    session.execute(gone.execution_options(synchronize_session=False))
