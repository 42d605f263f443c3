"""Large bytes of a job, stored in short transactions: other writers, and the job's own heartbeat, get their turn.

Each transaction checks the lease. Staged bytes belong to nothing until the one that seals them, and are dropped if the
job ends otherwise.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.db.blobs import CHUNK_BYTES, extend_blob, seal_blob, stage_blob, write_blob
from app.db.queue.lease import Lease, fence
from app.db.session import Database
from app.db.tables import Blob

BATCH_BYTES = 8 * CHUNK_BYTES
"""What one transaction stores: about a tenth of a second on SQLite."""


@dataclass(frozen=True)
class StagedBytes:
    """Bytes that are stored whole but belong to nothing yet."""

    blob_id: str
    sha256: str
    bytes: int


def begin_staging(db: Database, lease: Lease) -> str:
    """Begin the job's staged bytes anew; return the id of their blob. Raises StaleLeaseError."""
    with db.write() as session:
        fence(session, lease)
        return stage_blob(session, lease.tenant_id, lease.job_id)


def extend_staged(db: Database, lease: Lease, blob_id: str, position: int, chunks: Sequence[bytes]) -> None:
    """Add chunks of 1 MiB at a position, counted in chunks; doing it twice does no harm. Raises StaleLeaseError."""
    with db.write() as session:
        fence(session, lease)
        extend_blob(session, lease.tenant_id, blob_id, position, chunks)


def stage_if_large(db: Database, lease: Lease, data: bytes) -> bytes | StagedBytes:
    """Stage bytes that are too many for one transaction; return others as they are. Raises StaleLeaseError."""
    if len(data) <= BATCH_BYTES:
        return data
    blob_id = begin_staging(db, lease)
    for start in range(0, len(data), BATCH_BYTES):
        end = min(start + BATCH_BYTES, len(data))
        chunks = [data[at : at + CHUNK_BYTES] for at in range(start, end, CHUNK_BYTES)]
        extend_staged(db, lease, blob_id, start // CHUNK_BYTES, chunks)
    return StagedBytes(blob_id, hashlib.sha256(data).hexdigest(), len(data))


def seal(session: Session, tenant_id: str, data: bytes | StagedBytes) -> Blob:
    """Return the blob of staged or plain bytes, in the transaction that refers to it."""
    if isinstance(data, bytes):
        return write_blob(session, tenant_id, data)
    return seal_blob(session, tenant_id, data.blob_id, sha256=data.sha256, size=data.bytes)
