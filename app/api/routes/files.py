"""/v1/files."""

from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, UploadFile
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict

from app.api.deps import After, DatabaseDep, ResourceId, SettingsDep, TenantDep
from app.api.schemas.common import Deleted, Page, page
from app.api.schemas.files import FileObject, FilePreview, PreviewLine
from app.services import files
from app.services.downloads import Download, download_blob
from app.services.model_names import resolve_model

router = APIRouter(prefix="/v1/files", tags=["files"])


class FileUpload(BaseModel):
    """The multipart form of an upload."""

    model_config = ConfigDict(extra="forbid")

    file: UploadFile
    purpose: str


@router.post("")
def create_file(
    form: Annotated[FileUpload, Form()], database: DatabaseDep, tenant_id: TenantDep, settings: SettingsDep
) -> FileObject:
    """Check a JSONL file line by line and store it. At most 20 errors are told, each with line and field."""
    source, name = form.file.file, files.safe_filename(form.file.filename)
    count = files.check_upload(source, filename=name, purpose=form.purpose, max_bytes=settings.max_file_bytes)
    with database.write() as session:
        return FileObject.of(files.store_upload(session, tenant_id, source, filename=name, examples=count))


@router.get("")
def list_files(
    *,
    database: DatabaseDep,
    tenant_id: TenantDep,
    purpose: Annotated[str | None, Query(max_length=32, pattern=r"^[\x21-\x7e]*$")] = None,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=10000)] = 10000,
    order: Literal["asc", "desc"] = "desc",
) -> Page[FileObject]:
    """List files, newest first."""
    with database.read() as session:
        rows, has_more = files.list_files(session, tenant_id, purpose=purpose, after=after, limit=limit, order=order)
    return page([FileObject.of(row) for row in rows], [row.id for row in rows], has_more)


@router.get("/{file_id}")
def retrieve_file(file_id: ResourceId, database: DatabaseDep, tenant_id: TenantDep) -> FileObject:
    """Return one file."""
    with database.read() as session:
        return FileObject.of(files.get_file(session, tenant_id, file_id))


@router.delete("/{file_id}")
def delete_file(file_id: ResourceId, database: DatabaseDep, tenant_id: TenantDep) -> Deleted:
    """Delete a file."""
    with database.write() as session:
        files.delete_file(session, tenant_id, file_id)
    return Deleted(id=file_id, object="file")


@router.get("/{file_id}/content")
def file_content(file_id: ResourceId, database: DatabaseDep, tenant_id: TenantDep) -> StreamingResponse:
    """Return a file's bytes."""
    with database.read() as session:
        file = files.get_file(session, tenant_id, file_id)
        download = download_blob(session, tenant_id, file.blob_id)
    return attachment(download, file.filename, "application/octet-stream")


@router.get("/{file_id}/preview")
def preview_file(
    file_id: ResourceId,
    database: DatabaseDep,
    tenant_id: TenantDep,
    model: Annotated[str, Query(min_length=1, max_length=255)],
    examples: Annotated[int, Query(ge=1, le=20)] = 3,
) -> FilePreview:
    """Show tokens and loss mask of the first examples, as training would use them."""
    with database.read() as session:
        resolved = resolve_model(session, tenant_id, model)
        previewed = files.preview_file(session, tenant_id, file_id, resolved.info, examples)
    return FilePreview(file=file_id, model=resolved.name, data=[PreviewLine.of(line) for line in previewed])


def attachment(download: Download, filename: str, media_type: str) -> StreamingResponse:
    """Return a download as a file to be saved under `filename`."""
    headers = {
        "Content-Length": str(download.size),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(filename, safe='')}",
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(download.chunks(), media_type=media_type, headers=headers)
