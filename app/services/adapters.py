"""A tenant's adapters: listed, switched between versions, deleted."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from app.core.errors import InvalidRequestError, NotFoundError, not_found
from app.db.repositories import adapters
from app.db.repositories.adapters import NoSuchVersionError
from app.db.tables import Adapter, AdapterVersion


def get_adapter(session: Session, tenant_id: str, name: str) -> Adapter:
    """Return an adapter by name. Raises NotFoundError."""
    adapter = adapters.get_by_name(session, tenant_id, name)
    if adapter is None:
        raise not_found("adapter", name)
    return adapter


def list_adapters(session: Session, tenant_id: str, *, after: str | None, limit: int) -> tuple[Sequence[Adapter], bool]:
    """Return a page of adapters, newest first."""
    return adapters.list(session, tenant_id, after=after, limit=limit)


def list_versions(
    session: Session, tenant_id: str, name: str, *, after: str | None, limit: int
) -> tuple[Adapter, Sequence[AdapterVersion], bool]:
    """Return the adapter and a page of its versions, newest first. Raises NotFoundError."""
    adapter = get_adapter(session, tenant_id, name)
    rows, has_more = adapters.versions(session, tenant_id, adapter.id, after=after, limit=limit)
    return adapter, rows, has_more


def get_version(session: Session, tenant_id: str, name: str, version: int) -> AdapterVersion:
    """Return one version. Raises NotFoundError."""
    adapter = get_adapter(session, tenant_id, name)
    held = adapters.get_version(session, tenant_id, adapter.id, version)
    if held is None:
        raise _no_version(name, version)
    return held


def activate_version(session: Session, tenant_id: str, name: str, version: int) -> Adapter:
    """Serve a version from the next request on. Raises NotFoundError."""
    adapter = get_adapter(session, tenant_id, name)
    try:
        return adapters.activate(session, tenant_id, adapter.id, version)
    except NoSuchVersionError as error:
        raise _no_version(name, version) from error


def roll_back(session: Session, tenant_id: str, name: str, version: int | None) -> Adapter:
    """Serve an earlier version: the given one, else the one before the active. Raises InvalidRequestError."""
    adapter = get_adapter(session, tenant_id, name)
    if version is not None:
        get_version(session, tenant_id, name, version)
    try:
        return adapters.rollback(session, tenant_id, adapter.id, version)
    except NoSuchVersionError as error:
        raise InvalidRequestError(f"{name}: {error}", code="no_earlier_version", param="version") from error


def delete_adapter(session: Session, tenant_id: str, name: str) -> Adapter:
    """Delete an adapter with all its versions, as far as the tenant can see. Raises NotFoundError."""
    adapter = get_adapter(session, tenant_id, name)
    adapters.delete(session, tenant_id, adapter.id)
    return adapter


def _no_version(name: str, version: int) -> NotFoundError:
    return NotFoundError(f"Adapter {name!r} has no version {version}", code="version_not_found", param="version")
