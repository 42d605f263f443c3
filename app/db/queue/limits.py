"""A tenant's limits on what runs: how many jobs at a time, how many tokens a day. They hold over all base models."""

from typing import Literal

from sqlalchemy import ColumnElement, case, func, literal, select
from sqlalchemy.orm import Session

from app.db.tables import DailyTokens, Job, Tenant
from app.db.tables.base import db_today

LimitReached = Literal["tenant_running_cap", "tenant_daily_quota"]


def reached() -> ColumnElement[LimitReached | None]:
    """Return the expression for the limit that the tenant of the row is at, or null."""
    running = select(func.count()).where(Job.tenant_id == Tenant.id, Job.status == "running").scalar_subquery()
    today = (DailyTokens.tenant_id == Tenant.id, DailyTokens.day == db_today())
    tokens = select(DailyTokens.tokens).where(*today).scalar_subquery()
    return case(
        (Tenant.max_running_jobs.is_not(None) & (running >= Tenant.max_running_jobs), literal("tenant_running_cap")),
        (
            Tenant.tokens_per_day.is_not(None) & (func.coalesce(tokens, 0) >= Tenant.tokens_per_day),
            literal("tenant_daily_quota"),
        ),
        else_=None,
    )


def hold_running(session: Session, tenant_id: str) -> bool:
    """Keep claims for other base models from running this tenant's jobs until the transaction ends.

    False where another claim has it already: waiting for it might go round in a circle.
    """
    mine = select(Tenant.id).where(Tenant.id == tenant_id).with_for_update(skip_locked=True, key_share=True)
    return session.scalar(mine) is not None


def limit_reached(session: Session, tenant_id: str) -> LimitReached | None:
    """Return the limit that the tenant is at."""
    query = select(reached()).select_from(Tenant).where(Tenant.id == tenant_id)
    limit: LimitReached | None = session.scalar(query)
    return limit
