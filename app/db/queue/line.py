"""The line of a base model: which tenant workers serve next.

The tenant who has had least for its weight comes first, then who has been in line longest. So a tenant in line waits
for at most one claim of each other tenant, and one more for each claim's worth that it has had more than the other.
Tenants enter the line when a job of theirs is queued. At its turn a tenant who has no job left is let go, and one who
is at a limit of its own is held back; when it no longer is, it comes back as one who was away.
"""

from collections.abc import Iterator

from sqlalchemy import BindParameter, ColumnElement, Select, String, bindparam, literal, select, update
from sqlalchemy.orm import Session

from app.db.queue import limits
from app.db.repositories import queue_accounts
from app.db.tables import Job, QueueAccount, Tenant, db_now
from app.db.tables.base import DAY_SECONDS, db_today


def in_turn(session: Session, base_model: str) -> Iterator[str]:
    """Yield the tenants who have a queued job and may run it, first in turn first.

    Call it under the lock for claiming jobs of the base model, and write nothing of the queue while going on with it.
    """
    passed: list[str] = []
    looked_back = False
    while True:
        first = session.execute(FRONT, {"base": base_model, "passed": passed}).first()
        if not looked_back and (first is None or first.held):
            looked_back = True
            _let_back(session, base_model)
            continue
        if first is None:
            return
        limit = first.limit
        if not first.waits:
            _let_go(session, base_model, first.tenant_id, first.arrivals)
            continue
        if limit is None and first.capped:
            if not limits.hold_running(session, first.tenant_id):
                passed.append(first.tenant_id)
                continue
            limit = limits.limit_reached(session, first.tenant_id)
        if limit is not None:
            _hold_back(session, base_model, first.tenant_id, limit)
            continue
        yield first.tenant_id
        passed.append(first.tenant_id)


def _front() -> Select[str, int, bool, bool, limits.LimitReached | None, bool]:
    account, base_model = QueueAccount, bindparam("base", type_=String)
    queued = (Job.status == "queued", Job.base_model == base_model, Job.tenant_id == account.tenant_id)
    passed: BindParameter[str] = bindparam("passed", expanding=True)
    one = select(Job.id).where(*queued).limit(1).scalar_subquery()
    held = select(QueueAccount.tenant_id).where(*_held()).limit(1).correlate(None).scalar_subquery()
    return (
        select(
            account.tenant_id,
            account.arrivals,
            one.is_not(None).label("waits"),
            Tenant.max_running_jobs.is_not(None).label("capped"),
            limits.reached().label("limit"),
            held.is_not(None).label("held"),
        )
        .join(Tenant, Tenant.id == account.tenant_id)
        .where(account.base_model == base_model, account.state == "in_line", account.tenant_id.not_in(passed))
        .order_by(account.had, account.in_line_since, account.tenant_id)
        .limit(1)
    )


def _let_back(session: Session, base_model: str) -> None:
    """Let tenants who are no longer at their limit wait in line again."""
    for tenant_id in session.scalars(RELEASED, {"base": base_model}).all():
        queue_accounts.release(session, tenant_id, base_model)


def _held() -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for accounts of `:base` held back long enough to look at them again."""
    of_base = QueueAccount.base_model == bindparam("base", type_=String)
    return of_base, QueueAccount.state == "held", QueueAccount.held_until <= db_now()


def _released() -> Select[str]:
    joined = select(QueueAccount.tenant_id).join(Tenant, Tenant.id == QueueAccount.tenant_id)
    return joined.where(*_held(), limits.reached().is_(None))


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
it has a running cap, the limit that it is at, and whether anybody is held back; and the tenants who were held back and
are at no limit any more. Made once: a claim would take as long to make its queries as to run them.
"""
