"""/v1/adapters."""

from typing import Annotated

from fastapi import APIRouter, Form, Query
from fastapi.responses import StreamingResponse

from app.api.deps import After, DatabaseDep, Limit, ResourceId, SettingsDep, TenantDep, VersionNumber
from app.api.routes.files import attachment
from app.api.schemas.adapters import (
    ActivateBody,
    AdapterDetails,
    AdapterObject,
    AdapterUpload,
    RollbackBody,
    VersionDetails,
    VersionObject,
)
from app.api.schemas.common import Deleted, Page, page
from app.services import adapters
from app.services.adapter_upload import MAX_CONFIG_BYTES, check_adapter, on_disk, store_adapter
from app.services.downloads import download_version
from app.services.stored_weights import footprint, footprint_of

router = APIRouter(prefix="/v1/adapters", tags=["adapters"])


@router.get("")
def list_adapters(
    database: DatabaseDep, tenant_id: TenantDep, after: After = None, limit: Limit = 20
) -> Page[AdapterObject]:
    """List adapters, newest first."""
    with database.read() as session:
        rows, has_more = adapters.list_adapters(session, tenant_id, after=after, limit=limit)
    return page([AdapterObject.of(row) for row in rows], [row.id for row in rows], has_more)


@router.post("")
def upload_adapter(
    form: Annotated[AdapterUpload, Form()], database: DatabaseDep, tenant_id: TenantDep, settings: SettingsDep
) -> VersionObject:
    """Store a PEFT adapter as the next version of `name` and serve it; every tensor must fit the base model."""
    config = form.config.file.read(MAX_CONFIG_BYTES + 1)
    with on_disk(form.weights.file, max_bytes=settings.max_adapter_bytes) as weights:
        with database.read() as session:
            checked = check_adapter(session, name=form.name, base_model=form.base_model, config=config, weights=weights)
        with database.write() as session:
            version = store_adapter(session, tenant_id, checked)
            return VersionObject.of(adapters.get_adapter(session, tenant_id, form.name), version)


@router.get("/{name}")
def retrieve_adapter(name: ResourceId, database: DatabaseDep, tenant_id: TenantDep) -> AdapterDetails:
    """Return one adapter with its footprint."""
    with database.read() as session:
        adapter = adapters.get_adapter(session, tenant_id, name)
        return AdapterDetails.with_footprint(adapter, footprint(session, adapter))


@router.delete("/{name}")
def delete_adapter(name: ResourceId, database: DatabaseDep, tenant_id: TenantDep) -> Deleted:
    """Delete an adapter with its versions."""
    with database.write() as session:
        adapter = adapters.delete_adapter(session, tenant_id, name)
    return Deleted(id=adapter.id, object="adapter")


@router.get("/{name}/versions")
def list_versions(
    name: ResourceId, database: DatabaseDep, tenant_id: TenantDep, after: After = None, limit: Limit = 20
) -> Page[VersionObject]:
    """List an adapter's versions, newest first."""
    with database.read() as session:
        adapter, rows, has_more = adapters.list_versions(session, tenant_id, name, after=after, limit=limit)
    return page([VersionObject.of(adapter, row) for row in rows], [row.id for row in rows], has_more)


@router.get("/{name}/versions/{version}")
def retrieve_version(
    name: ResourceId, version: VersionNumber, database: DatabaseDep, tenant_id: TenantDep
) -> VersionDetails:
    """Return one version, and what it adds to its base."""
    with database.read() as session:
        held = adapters.get_version(session, tenant_id, name, version)
        adapter = adapters.get_adapter(session, tenant_id, name)
        return VersionDetails.with_footprint(adapter, held, footprint_of(session, adapter, held))


@router.get("/{name}/versions/{version}/download")
def download(
    name: ResourceId,
    version: VersionNumber,
    database: DatabaseDep,
    tenant_id: TenantDep,
    file: Annotated[str | None, Query(max_length=64)] = None,
) -> StreamingResponse:
    """Return a version as a zip that PEFT loads, or one of its files with `file=`."""
    with database.read() as session:
        held = adapters.get_version(session, tenant_id, name, version)
        content = download_version(session, held, file)
    media_type = "application/octet-stream" if file else "application/zip"
    return attachment(content, file or f"{name}-{version}.zip", media_type)


@router.post("/{name}/activate")
def activate_version(
    name: ResourceId, body: ActivateBody, database: DatabaseDep, tenant_id: TenantDep
) -> AdapterObject:
    """Serve the given version from the next request on."""
    with database.write() as session:
        return AdapterObject.of(adapters.activate_version(session, tenant_id, name, body.version))


@router.post("/{name}/rollback")
def roll_back(
    name: ResourceId, database: DatabaseDep, tenant_id: TenantDep, body: RollbackBody | None = None
) -> AdapterObject:
    """Serve an earlier version: the given one, else the one before the active."""
    with database.write() as session:
        return AdapterObject.of(adapters.roll_back(session, tenant_id, name, body.version if body else None))
