"""Large immutable bytes in chunks, addressed by their SHA-256 within a tenant. Knows nothing of what they mean."""

import hashlib
import io
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from sqlalchemy import delete, exists, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.core.ids import new_id
from app.db import dialects
from app.db.tables import Base, Blob, BlobChunk

CHUNK_BYTES = 1024 * 1024


class BlobNotFoundError(LookupError):
    """The tenant has no such blob."""


class BlobCorruptError(Exception):
    """The stored bytes are not the ones that were written."""


def write_blob(session: Session, tenant_id: str, source: bytes | BinaryIO) -> Blob:
    """Store `source` and return its blob; content that the tenant already stored is reused.

    A file is read twice from its start (hash, then chunks) and never held whole in memory.
    """
    stream = io.BytesIO(source) if isinstance(source, bytes) else source
    sha256, size = _measure(stream)
    blob_id = new_id("blob")
    while not _insert_new(session, Blob(id=blob_id, tenant_id=tenant_id, sha256=sha256, bytes=size)):
        existing = _find_and_hold(session, tenant_id, sha256)
        if existing is not None:
            return existing
    stream.seek(0)
    for position, data in enumerate(_chunks(stream)):
        session.execute(insert(BlobChunk), {"blob_id": blob_id, "position": position, "data": data})
    return session.get_one(Blob, blob_id)


def stage_blob(session: Session, tenant_id: str, name: str) -> str:
    """Begin a blob whose content comes in pieces, in place of one begun under this name; return its id.

    Until `seal_blob` nothing finds it: it stands under its name where other blobs have a hash.
    """
    drop_staged_blob(session, tenant_id, name)
    blob_id = new_id("blob")
    session.execute(insert(Blob).values(id=blob_id, tenant_id=tenant_id, sha256=_staged(name), bytes=0))
    return blob_id


def extend_blob(session: Session, tenant_id: str, blob_id: str, position: int, chunks: Sequence[bytes]) -> None:
    """Add chunks of 1 MiB (the last may be shorter) to a staged blob; what is there already stays.

    Raises BlobNotFoundError where the tenant has none of that id that is still staged.
    """
    staged = (Blob.id == blob_id, Blob.tenant_id == tenant_id, Blob.sha256.startswith(_staged("")))
    if session.scalar(select(Blob.id).where(*staged)) is None:
        raise BlobNotFoundError(f"no staged blob {blob_id}")
    for number, data in enumerate(chunks, start=position):
        row = {"blob_id": blob_id, "position": number, "data": data}
        session.execute(dialects.insert(session, BlobChunk).values(row).on_conflict_do_nothing())


def seal_blob(session: Session, tenant_id: str, blob_id: str, *, sha256: str, size: int) -> Blob:
    """Make a staged blob one like any other; content that the tenant already stored is reused instead."""
    mine = (Blob.id == blob_id, Blob.tenant_id == tenant_id)
    while True:
        try:
            with session.begin_nested():
                session.execute(update(Blob).where(*mine).values(sha256=sha256, bytes=size))
            return session.get_one(Blob, blob_id, populate_existing=True)
        except IntegrityError:
            existing = _find_and_hold(session, tenant_id, sha256)
        if existing is not None:
            session.execute(delete(Blob).where(*mine))
            return existing


def drop_staged_blob(session: Session, tenant_id: str, name: str) -> None:
    """Delete what was staged under this name and never sealed, if anything was."""
    session.execute(delete(Blob).where(Blob.tenant_id == tenant_id, Blob.sha256 == _staged(name)))


def read_blob(session: Session, tenant_id: str, blob_id: str) -> bytes:
    """Return the whole content, verified. Raises BlobNotFoundError or BlobCorruptError."""
    buffer = io.BytesIO()
    for chunk in iter_blob(session, tenant_id, blob_id):
        buffer.write(chunk)
    return buffer.getvalue()


def iter_blob(session: Session, tenant_id: str, blob_id: str) -> Iterator[bytes]:
    """Yield the content in chunks of 1 MiB. Raises BlobNotFoundError at once, BlobCorruptError where it shows.

    A changed byte shows after the last chunk only, so act on the content when the iterator has ended.
    """
    blob = session.scalar(select(Blob).where(Blob.id == blob_id, Blob.tenant_id == tenant_id))
    if blob is None:
        raise BlobNotFoundError(f"no blob {blob_id}")
    return _verified_chunks(session, blob)


def iter_lines(session: Session, tenant_id: str, blob_id: str) -> Iterator[bytes]:
    """Yield the content's lines without their newline; a last line needs none. Raises as `iter_blob` does."""
    return _lines(iter_blob(session, tenant_id, blob_id))


def delete_blob_if_unused(session: Session, tenant_id: str, blob_id: str) -> bool:
    """Delete a blob that no row refers to; say whether it went."""
    held = select(Blob.id).where(Blob.id == blob_id, Blob.tenant_id == tenant_id).with_for_update()
    if session.scalar(held) is None:
        return False
    users = [exists().where(column == blob_id) for column in _REFERENCES]
    if session.scalar(select(or_(*users))):
        return False
    session.execute(delete(Blob).where(Blob.id == blob_id))
    return True


_REFERENCES = [
    key.parent
    for table in Base.metadata.sorted_tables
    for key in table.foreign_keys
    if key.target_fullname == "blobs.id" and table.name != BlobChunk.__tablename__
]


def _staged(name: str) -> str:
    return f"staged:{name}"


def _measure(stream: BinaryIO) -> tuple[str, int]:
    stream.seek(0)
    digest, size = hashlib.sha256(), 0
    for data in _chunks(stream):
        digest.update(data)
        size += len(data)
    return digest.hexdigest(), size


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    while data := stream.read(CHUNK_BYTES):
        yield data


def _insert_new(session: Session, blob: Blob) -> bool:
    row = {"id": blob.id, "tenant_id": blob.tenant_id, "sha256": blob.sha256, "bytes": blob.bytes}
    return (
        session.scalar(dialects.insert(session, Blob).values(row).on_conflict_do_nothing().returning(Blob.id))
        is not None
    )


def _find_and_hold(session: Session, tenant_id: str, sha256: str) -> Blob | None:
    # The key-share lock keeps a concurrent delete_blob_if_unused away until the caller's reference is committed.
    query = select(Blob).where(Blob.tenant_id == tenant_id, Blob.sha256 == sha256)
    return session.scalar(query.with_for_update(read=True, key_share=True))


def _verified_chunks(session: Session, blob: Blob) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for position in range(-(-blob.bytes // CHUNK_BYTES)):
        data = session.scalar(
            select(BlobChunk.data).where(BlobChunk.blob_id == blob.id, BlobChunk.position == position)
        )
        if data is None:
            raise BlobCorruptError(f"blob {blob.id}: chunk {position} is missing")
        digest.update(data)
        yield data
    if digest.hexdigest() != blob.sha256:
        raise BlobCorruptError(f"blob {blob.id}: its content no longer has the SHA-256 it was stored under")


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    pieces: list[bytes] = []
    for chunk in chunks:
        *complete, rest = chunk.split(b"\n")
        for line in complete:
            yield b"".join([*pieces, line])
            pieces = []
        if rest:
            pieces.append(rest)
    if pieces:
        yield b"".join(pieces)
