"""Adapters and their immutable versions. Publishing, activating and rolling back move one pointer in one statement."""

from collections.abc import Mapping, Sequence
from typing import BinaryIO

from sqlalchemy import ColumnElement, func, select, text, update
from sqlalchemy.orm import Session

from app.core.ids import new_id
from app.db import dialects
from app.db.blobs import write_blob
from app.db.repositories.paging import Order, fetch_page
from app.db.tables import Adapter, AdapterVersion, Blob, JobCheckpoint, db_now


class AdapterConflictError(Exception):
    """The tenant's adapter of that name stands on another base model."""


class NoSuchVersionError(LookupError):
    """The adapter has no version to go to."""


def get(session: Session, tenant_id: str, adapter_id: str, *, hold: bool = False) -> Adapter | None:
    """Return the adapter, or None when the tenant has none of that id or deleted it.

    With `hold` nobody else changes or deletes it before this write transaction ends.
    """
    query = select(Adapter).where(Adapter.id == adapter_id, *_of(tenant_id))
    return session.scalar(query.with_for_update().execution_options(populate_existing=True) if hold else query)


def get_by_name(session: Session, tenant_id: str, name: str) -> Adapter | None:
    """Return the tenant's adapter of that name, or None."""
    return session.scalar(select(Adapter).where(Adapter.name == name, *_of(tenant_id)))


def list(
    session: Session, tenant_id: str, *, after: str | None = None, limit: int = 20, order: Order = "desc"
) -> tuple[Sequence[Adapter], bool]:
    """Return a page of the tenant's adapters and whether more follow."""
    query = select(Adapter).where(*_of(tenant_id))
    return fetch_page(session, query, Adapter.id, after=after, limit=limit, order=order)


def versions(
    session: Session,
    tenant_id: str,
    adapter_id: str,
    *,
    after: str | None = None,
    limit: int = 20,
    order: Order = "desc",
) -> tuple[Sequence[AdapterVersion], bool]:
    """Return a page of the adapter's versions by number, beyond the version whose id is `after`."""
    query = select(AdapterVersion).where(AdapterVersion.adapter_id == adapter_id, AdapterVersion.tenant_id == tenant_id)
    beyond = None
    if after is not None:
        mine = (AdapterVersion.id == after, AdapterVersion.tenant_id == tenant_id)
        beyond = select(AdapterVersion.version).where(*mine).scalar_subquery()
    return fetch_page(session, query, AdapterVersion.version, after=beyond, limit=limit, order=order)


def get_version(session: Session, tenant_id: str, adapter_id: str, version: int) -> AdapterVersion | None:
    """Return one version of the tenant's adapter, or None."""
    return session.scalar(
        select(AdapterVersion).where(
            AdapterVersion.adapter_id == adapter_id,
            AdapterVersion.version == version,
            AdapterVersion.tenant_id == tenant_id,
        )
    )


def get_version_by_id(session: Session, tenant_id: str, version_id: str) -> AdapterVersion | None:
    """Return the tenant's version of that id, or None."""
    return session.scalar(
        select(AdapterVersion).where(AdapterVersion.id == version_id, AdapterVersion.tenant_id == tenant_id)
    )


def get_checkpoint(session: Session, tenant_id: str, job_id: str, step: int) -> JobCheckpoint | None:
    """Return the checkpoint that the model name `ft:{base}:{tenant}:{adapter}:{job id}:step-{n}` means, or None."""
    return session.scalar(
        select(JobCheckpoint).where(
            JobCheckpoint.job_id == job_id, JobCheckpoint.step == step, JobCheckpoint.tenant_id == tenant_id
        )
    )


def activate(session: Session, tenant_id: str, adapter_id: str, version: int) -> Adapter:
    """Serve `version` from the next request on. Raises NoSuchVersionError."""
    exists = select(AdapterVersion.id).where(AdapterVersion.adapter_id == adapter_id, AdapterVersion.version == version)
    adapter = session.scalar(
        update(Adapter)
        .where(Adapter.id == adapter_id, *_of(tenant_id), exists.exists())
        .values(active_version=version)
        .returning(Adapter)
        .execution_options(synchronize_session=False, populate_existing=True)
    )
    if adapter is None:
        raise NoSuchVersionError(f"the adapter has no version {version}")
    return adapter


def rollback(session: Session, tenant_id: str, adapter_id: str, version: int | None = None) -> Adapter:
    """Serve an earlier version: the given one, else the highest below the active one. Raises NoSuchVersionError."""
    held = select(Adapter).where(Adapter.id == adapter_id, *_of(tenant_id)).with_for_update()
    adapter = session.scalar(held.execution_options(populate_existing=True))
    if adapter is None or adapter.active_version is None:
        raise NoSuchVersionError("the adapter has no active version to roll back from")
    if version is None:
        version = session.scalar(
            select(func.max(AdapterVersion.version)).where(
                AdapterVersion.adapter_id == adapter_id, AdapterVersion.version < adapter.active_version
            )
        )
        if version is None:
            raise NoSuchVersionError(f"the adapter has no version below its active version {adapter.active_version}")
    if version >= adapter.active_version:
        raise NoSuchVersionError(f"version {version} is not earlier than the active version {adapter.active_version}")
    return activate(session, tenant_id, adapter_id, version)


def delete(session: Session, tenant_id: str, adapter_id: str) -> bool:
    """Delete the adapter: its name is free again and nothing serves it. False when the tenant has none of that id."""
    gone = update(Adapter).where(Adapter.id == adapter_id, *_of(tenant_id)).values(deleted_at=db_now())
    return session.scalar(gone.returning(Adapter.id)) is not None


def get_or_create(session: Session, tenant_id: str, *, name: str, base_model: str) -> Adapter:
    """Return the tenant's adapter of that name, made now if need be, held until the transaction ends.

    A new one numbers its versions on from deleted ones of its name, so that `name@1` never means other weights than it
    did. Raises AdapterConflictError when the name belongs to an adapter on another base model.
    """
    held = select(Adapter).where(Adapter.name == name, *_of(tenant_id)).with_for_update()
    while (adapter := session.scalar(held.execution_options(populate_existing=True))) is None:
        namesakes = (Adapter.tenant_id == tenant_id, Adapter.name == name)
        given_out = select(func.coalesce(func.max(Adapter.latest_version), 0)).where(*namesakes).scalar_subquery()
        statement = dialects.insert(session, Adapter).values(
            id=new_id("adp"), tenant_id=tenant_id, name=name, base_model=base_model, latest_version=given_out
        )
        session.execute(
            statement.on_conflict_do_nothing(
                index_elements=[Adapter.tenant_id, Adapter.name], index_where=text("deleted_at IS NULL")
            )
        )
    if adapter.base_model != base_model:
        raise AdapterConflictError(
            f"adapter {name!r} stands on base model {adapter.base_model!r}, not on {base_model!r}: use another name"
        )
    return adapter


def add_version(
    session: Session,
    tenant_id: str,
    adapter: Adapter,
    *,
    weights: bytes | BinaryIO | Blob,
    config: Mapping[str, object],
    metrics: Mapping[str, object],
    job_id: str | None = None,
    parent_version: int | None = None,
) -> AdapterVersion:
    """Store the next version of the adapter and make it the active one."""
    blob = weights if isinstance(weights, Blob) else write_blob(session, tenant_id, weights)
    number = session.scalar(
        update(Adapter)
        .where(Adapter.id == adapter.id, *_of(tenant_id))
        .values(latest_version=Adapter.latest_version + 1, active_version=Adapter.latest_version + 1)
        .returning(Adapter.latest_version)
        .execution_options(synchronize_session=False)
    )
    if number is None:
        raise AdapterConflictError(f"adapter {adapter.name!r} was deleted")
    version = AdapterVersion(
        id=new_id("ver"),
        tenant_id=tenant_id,
        adapter_id=adapter.id,
        version=number,
        parent_version=parent_version,
        job_id=job_id,
        weights_id=blob.id,
        sha256=blob.sha256,
        bytes=blob.bytes,
        config=dict(config),
        metrics=dict(metrics),
    )
    session.add(version)
    session.flush()
    session.refresh(adapter)
    return version


def add_uploaded_version(
    session: Session,
    tenant_id: str,
    *,
    name: str,
    base_model: str,
    weights: bytes | BinaryIO,
    config: Mapping[str, object],
    metrics: Mapping[str, object],
) -> AdapterVersion:
    """Store weights that the tenant brought as the next version of its adapter `name`. Raises AdapterConflictError."""
    adapter = get_or_create(session, tenant_id, name=name, base_model=base_model)
    return add_version(session, tenant_id, adapter, weights=weights, config=config, metrics=metrics)


def _of(tenant_id: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return Adapter.tenant_id == tenant_id, Adapter.deleted_at.is_(None)
