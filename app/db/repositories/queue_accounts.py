"""A tenant's account in the queue of a base model: joining the line, and paying for what was trained.

Whoever joins or comes back starts level with the one in line who has had least, so that nobody is owed anything for
time spent away; where nobody waits, level with the one who has had most, so that nobody pays for what was free. As
`workers.training.turns` does within a worker.
"""

from sqlalchemy import Float, Update, and_, bindparam, case, exists, func, select, update
from sqlalchemy.orm import Session

from app.db import dialects
from app.db.tables import Job, QueueAccount, Tenant, db_now

STATES = ("in_line", "held", "away")


def join(session: Session, tenant_id: str, base_model: str) -> None:
    """Let the tenant wait in line, in the transaction that queues one of its jobs."""
    level = _level(session, base_model)
    account = dialects.insert(session, QueueAccount).values(
        base_model=base_model, tenant_id=tenant_id, state="in_line", had=level, in_line_since=db_now(), arrivals=1
    )
    away = QueueAccount.state == "away"
    back = {
        "state": case((away, "in_line"), else_=QueueAccount.state),
        "had": case((and_(away, QueueAccount.had < level), level), else_=QueueAccount.had),
        "in_line_since": case((away, db_now()), else_=QueueAccount.in_line_since),
        "arrivals": QueueAccount.arrivals + 1,
    }
    session.execute(
        account.on_conflict_do_update(index_elements=[QueueAccount.base_model, QueueAccount.tenant_id], set_=back)
    )


def release(session: Session, tenant_id: str, base_model: str) -> None:
    """Let a tenant who was held back wait in line again, like one who was away."""
    level = _level(session, base_model)
    had = case((QueueAccount.had < level, level), else_=QueueAccount.had)
    account = update(QueueAccount).where(QueueAccount.base_model == base_model, QueueAccount.tenant_id == tenant_id)
    released = account.values(state="in_line", had=had, in_line_since=db_now())
    session.execute(released.execution_options(synchronize_session=False))


def look_again(session: Session, tenant_id: str) -> None:
    """Let the next claims see whether the tenant is still at a limit."""
    account = update(QueueAccount).where(QueueAccount.tenant_id == tenant_id).values(held_until=0.0)
    session.execute(account.execution_options(synchronize_session=False))


def charge(session: Session, tenant_id: str, base_model: str, tokens: int) -> None:
    """Count tokens as had by the tenant, divided by its weight."""
    session.execute(CHARGE, {"base": base_model, "tenant": tenant_id, "tokens": tokens})


def _level(session: Session, base_model: str) -> float:
    """Return where one who joins starts."""
    of_base = QueueAccount.base_model == base_model
    queued = exists().where(
        Job.status == "queued", Job.base_model == base_model, Job.tenant_id == QueueAccount.tenant_id
    )
    least = select(QueueAccount.had).where(of_base, QueueAccount.state == "in_line", queued).order_by(QueueAccount.had)
    level = session.scalar(least.limit(1))
    if level is not None:
        return level
    most = [select(func.max(QueueAccount.had)).where(of_base, QueueAccount.state == state) for state in STATES]
    return max((had for query in most if (had := session.scalar(query)) is not None), default=0.0)


def _charge() -> Update:
    weight = select(Tenant.weight).where(Tenant.id == bindparam("tenant")).scalar_subquery()
    mine = (QueueAccount.base_model == bindparam("base"), QueueAccount.tenant_id == bindparam("tenant"))
    had = QueueAccount.had + bindparam("tokens", type_=Float(53)) / weight
    return update(QueueAccount).where(*mine).values(had=had).execution_options(synchronize_session=False)


CHARGE = _charge()
