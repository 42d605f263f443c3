"""The line of a base model: which tenant workers serve next.

The tenant who has had least for its weight comes first, then who has been in line longest. So a tenant in line waits
for at most one claim of each other tenant, and one more for each claim's worth that it has had more than the other.
Tenants enter the line when a job of theirs is queued. At its turn a tenant who has no job left is let go, and one who
is at a limit of its own is held back; when it no longer is, it comes back as one who was away.
"""

from collections.abc import Collection

from sqlalchemy import BindParameter, Select, String, bindparam, literal, select, update
from sqlalchemy.orm import Session

from app.db.queue import limits
from app.db.repositories import queue_accounts
from app.db.tables import Job, QueueAccount, Tenant, db_now
from app.db.tables.base import DAY_SECONDS, db_today


def first_in_line(session: Session, base_model: str, passed: Collection[str]) -> str | None:
    """Return the tenant in turn who has a queued job and may run it, besides those `passed` over, or None.

    Call it under the lock for claiming jobs of the base model.
    """
    skipped = list(passed)
    while (row := session.execute(FRONT, {"base": base_model, "passed": skipped}).first()) is not None:
        tenant_id, arrivals, waits, capped, limit = row
        if not waits:
            _let_go(session, base_model, tenant_id, arrivals)
            continue
        if limit is None and capped:
            if not limits.hold_running(session, tenant_id):
                skipped.append(tenant_id)
                continue
            limit = limits.limit_reached(session, tenant_id)
        if limit is None:
            return tenant_id
        _hold_back(session, base_model, tenant_id, limit)
    return None


def _front() -> Select[str, int, bool, bool, limits.LimitReached | None]:
    account, base_model = QueueAccount, bindparam("base", type_=String)
    queued = (Job.status == "queued", Job.base_model == base_model, Job.tenant_id == account.tenant_id)
    passed: BindParameter[str] = bindparam("passed", expanding=True)
    one = select(Job.id).where(*queued).limit(1).scalar_subquery()
    return (
        select(
            account.tenant_id,
            account.arrivals,
            one.is_not(None),
            Tenant.max_running_jobs.is_not(None),
            limits.reached(),
        )
        .join(Tenant, Tenant.id == account.tenant_id)
        .where(account.base_model == base_model, account.state == "in_line", account.tenant_id.not_in(passed))
        .order_by(account.had, account.in_line_since, account.tenant_id)
        .limit(1)
    )


def let_back(session: Session, base_model: str) -> None:
    """Let tenants who are no longer at their limit wait in line again."""
    for tenant_id in session.scalars(RELEASED, {"base": base_model}).all():
        queue_accounts.release(session, tenant_id, base_model)


def _released() -> Select[str]:
    held = (
        QueueAccount.base_model == bindparam("base"),
        QueueAccount.state == "held",
        QueueAccount.held_until <= db_now(),
    )
    joined = select(QueueAccount.tenant_id).join(Tenant, Tenant.id == QueueAccount.tenant_id)
    return joined.where(*held, limits.reached().is_(None))


def _let_go(session: Session, base_model: str, tenant_id: str, arrivals: int) -> None:
    """Take the tenant out of line, unless another job of it was queued meanwhile, which waits for this row's lock."""
    seen = (QueueAccount.tenant_id == tenant_id, QueueAccount.arrivals == arrivals)
    gone = update(QueueAccount).where(QueueAccount.base_model == base_model, *seen).values(state="away")
    session.execute(gone.execution_options(synchronize_session=False))


def _hold_back(session: Session, base_model: str, tenant_id: str, limit: limits.LimitReached) -> None:
    """Take the tenant out of line until it is no longer at its limit: at a quota, tomorrow at the earliest."""
    until = (db_today() + 1) * DAY_SECONDS if limit == "tenant_daily_quota" else literal(0.0)
    mine = update(QueueAccount).where(QueueAccount.base_model == base_model, QueueAccount.tenant_id == tenant_id)
    session.execute(mine.values(state="held", held_until=until).execution_options(synchronize_session=False))


FRONT, RELEASED = _front(), _released()
"""Of the line of `:base` the first besides those `:passed` over: tenant, arrivals, whether it has a queued job, whether
it has a running cap, the limit that it is at; and the tenants who were held back and are at no limit any more. Made
once: a claim would take as long to make its queries as to run them.
"""
