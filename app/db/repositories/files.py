"""Uploaded files. A deleted file is gone at once; its row and bytes go with it unless a job refers to them."""

from collections.abc import Sequence

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.core.ids import new_id
from app.db.blobs import delete_blob_if_unused
from app.db.repositories.paging import Order, fetch_page
from app.db.tables import Blob, File, Job, db_now


def create(session: Session, tenant_id: str, *, blob: Blob, filename: str, purpose: str, examples: int) -> File:
    """Add a file whose bytes `blob` holds."""
    file = File(
        id=new_id("file"),
        tenant_id=tenant_id,
        blob_id=blob.id,
        filename=filename,
        purpose=purpose,
        bytes=blob.bytes,
        examples=examples,
    )
    session.add(file)
    session.flush()
    return file


def get(session: Session, tenant_id: str, file_id: str, *, hold: bool = False) -> File | None:
    """Return the file, or None. With `hold` it cannot be deleted before this write transaction ends."""
    query = select(File).where(File.id == file_id, File.tenant_id == tenant_id, File.deleted_at.is_(None))
    return session.scalar(query.with_for_update(read=True) if hold else query)


def list(
    session: Session,
    tenant_id: str,
    *,
    purpose: str | None = None,
    after: str | None = None,
    limit: int = 100,
    order: Order = "desc",
) -> tuple[Sequence[File], bool]:
    """Return a page of the tenant's files and whether more follow."""
    query = select(File).where(File.tenant_id == tenant_id, File.deleted_at.is_(None))
    if purpose is not None:
        query = query.where(File.purpose == purpose)
    return fetch_page(session, query, File.id, after=after, limit=limit, order=order)


def delete(session: Session, tenant_id: str, file_id: str) -> bool:
    """Delete the file; False when the tenant has none of that id."""
    mine = select(File).where(File.id == file_id, File.tenant_id == tenant_id, File.deleted_at.is_(None))
    file = session.scalar(mine.with_for_update())
    if file is None:
        return False
    uses = (Job.training_file, Job.validation_file, Job.retention_file)
    used = select(Job.id).where(or_(*(column == file_id for column in uses))).limit(1)
    if session.scalar(used) is not None:
        file.deleted_at = session.scalar(select(db_now()))
        session.flush()
        return True
    session.delete(file)
    session.flush()
    delete_blob_if_unused(session, tenant_id, file.blob_id)
    return True
