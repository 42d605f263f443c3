"""Where a job is in the queue: how many claims come before its own, as things stand now.

The count follows the order of `line` and what each claim is charged at first, as if from now on nothing were queued,
nothing trained and nobody came to a limit. A job whose worker was lost meanwhile goes first and is not counted.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import ceil

from sqlalchemy import Select, String, bindparam, func, select
from sqlalchemy.orm import Session

from app.db.queue.accounts import CLAIM_TOKENS
from app.db.queue.limits import LimitReached, reached
from app.db.tables import Job, QueueAccount, Tenant


@dataclass(frozen=True)
class InLine:
    """A tenant in line, with so many queued jobs that may be claimed."""

    tenant_id: str
    had: float
    since: float
    weight: float
    jobs: int

    def had_before(self, rank: int) -> float:
        """Return how much it will have had when its job with `rank` others of its own before it is claimed."""
        return self.had + rank * CLAIM_TOKENS / self.weight

    def claims_before(self, other: "InLine", rank: int) -> int:
        """Return how many of its jobs are claimed before the other's job of this rank."""
        turns = (other.had_before(rank) - self.had) * self.weight / CLAIM_TOKENS
        first = (self.since, self.tenant_id) < (other.since, other.tenant_id)
        return min(self.jobs, max(0, ceil(turns) + (first and turns == ceil(turns))))


def positions(session: Session, tenant_id: str, base_model: str, job_ids: Collection[str]) -> Mapping[str, int]:
    """Return how many claims come before that of each of the tenant's jobs; those not queued there are left out."""
    ranks = _ranks(session, tenant_id, base_model, job_ids)
    found = session.execute(IN_LINE.where(QueueAccount.tenant_id == tenant_id), {"base": base_model}).first()
    if found is None or not ranks:
        return ranks
    own = InLine(*found[:5])
    ahead = IN_LINE.where(QueueAccount.tenant_id != tenant_id, QueueAccount.had <= own.had_before(max(ranks.values())))
    others = [InLine(*row[:5]) for row in session.execute(ahead, {"base": base_model}) if row[5] is None]
    return {id: rank + sum(other.claims_before(own, rank) for other in others) for id, rank in ranks.items()}


def _ranks(session: Session, tenant_id: str, base_model: str, job_ids: Collection[str]) -> dict[str, int]:
    """Return how many of the tenant's own jobs come before each of these."""
    queued = (Job.tenant_id == tenant_id, Job.status == "queued", Job.base_model == base_model)
    rank = func.row_number().over(order_by=(Job.priority, Job.id)) - 1
    ranked = select(Job.id, rank.label("rank")).where(*queued).subquery()
    return {row.id: row.rank for row in session.execute(select(ranked).where(ranked.c.id.in_(job_ids)))}


def _in_line() -> Select[str, float, float, float, int, LimitReached | None]:
    account, base_model = QueueAccount, bindparam("base", type_=String)
    queued = (Job.tenant_id == account.tenant_id, Job.status == "queued", Job.base_model == base_model)
    jobs = select(func.count()).where(*queued).scalar_subquery()
    return (
        select(account.tenant_id, account.had, account.in_line_since, Tenant.weight, jobs, reached())
        .join(Tenant, Tenant.id == account.tenant_id)
        .where(account.base_model == base_model, account.state == "in_line")
    )


IN_LINE = _in_line()
"""The columns of InLine, and the limit that the tenant is at, of those in line for `:base`."""
