"""Tenants. Creating and listing them is the operator's work, so those functions take no tenant."""

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.core.ids import new_id
from app.db import dialects
from app.db.repositories import queue_accounts
from app.db.tables import DailyTokens, Tenant
from app.db.tables.base import db_today


class TenantNameTakenError(Exception):
    """Another tenant already has the name."""


def create(session: Session, name: str) -> Tenant:
    """Add a tenant. Raises TenantNameTakenError."""
    statement = dialects.insert(session, Tenant).values(id=new_id("tnt"), name=name).on_conflict_do_nothing()
    tenant_id = session.scalar(statement.returning(Tenant.id))
    if tenant_id is None:
        raise TenantNameTakenError(f"a tenant named {name!r} exists already")
    return session.get_one(Tenant, tenant_id)


def get(session: Session, tenant_id: str) -> Tenant | None:
    """Return the tenant, or None."""
    return session.scalar(select(Tenant).where(Tenant.id == tenant_id))


def get_by_name(session: Session, name: str) -> Tenant | None:
    """Return the tenant called `name`, or None."""
    return session.scalar(select(Tenant).where(Tenant.name == name))


def set_limits(session: Session, tenant_id: str, **limits: float | None) -> None:
    """Change the named ones of weight, max_running_jobs, max_queued_jobs and tokens_per_day; None lifts a limit."""
    session.execute(update(Tenant).where(Tenant.id == tenant_id).values(**limits))
    queue_accounts.look_again(session, tenant_id)


def count_tokens(session: Session, tenant_id: str, tokens: int) -> None:
    """Add tokens that were trained now to the tenant's day."""
    day = dialects.insert(session, DailyTokens).values(tenant_id=tenant_id, day=db_today(), tokens=tokens)
    more = {"tokens": DailyTokens.tokens + tokens}
    session.execute(day.on_conflict_do_update(index_elements=[DailyTokens.tenant_id, DailyTokens.day], set_=more))


def list(session: Session) -> Sequence[Tenant]:
    """Return all tenants, oldest first."""
    return session.scalars(select(Tenant).order_by(Tenant.id)).all()
