"""Tenants. Creating and listing them is the operator's work, so those functions take no tenant."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core.ids import new_id
from app.db import dialects
from app.db.tables import Tenant


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


def list(session: Session) -> Sequence[Tenant]:
    """Return all tenants, oldest first."""
    return session.scalars(select(Tenant).order_by(Tenant.id)).all()
