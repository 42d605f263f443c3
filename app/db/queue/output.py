"""A merge's output: stored in short transactions, so that other writers get their turn, then finished in one.

Each of them checks the lease. Until the last one the bytes belong to no file and are dropped if the job ends otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.contracts.merge import MergeResult
from app.db.blobs import extend_blob, seal_blob, stage_blob
from app.db.queue.finish import end
from app.db.queue.lease import Lease, fence
from app.db.repositories import files
from app.db.repositories.jobs import NewEvent, add_event
from app.db.session import Database
from app.db.tables import File

PURPOSE = "merge-output"


@dataclass(frozen=True)
class StoredOutput:
    """Bytes that are stored whole but belong to no file yet."""

    blob_id: str
    sha256: str
    bytes: int


def begin_output(db: Database, lease: Lease) -> str:
    """Begin the job's output anew; return the id of its blob. Raises StaleLeaseError."""
    with db.write() as session:
        fence(session, lease)
        return stage_blob(session, lease.tenant_id, lease.job_id)


def extend_output(db: Database, lease: Lease, blob_id: str, position: int, chunks: Sequence[bytes]) -> None:
    """Add chunks of 1 MiB at a position, counted in chunks; doing it twice does no harm. Raises StaleLeaseError."""
    with db.write() as session:
        fence(session, lease)
        extend_blob(session, lease.tenant_id, blob_id, position, chunks)


def finish_merged(db: Database, lease: Lease, output: StoredOutput, filename: str) -> File:
    """End the job well and make its output a file of the tenant, all or nothing. Raises StaleLeaseError."""
    with db.write() as session:
        fence(session, lease)
        blob = seal_blob(session, lease.tenant_id, output.blob_id, sha256=output.sha256, size=output.bytes)
        file = files.create(session, lease.tenant_id, blob=blob, filename=filename, purpose=PURPOSE, examples=0)
        result = MergeResult(file=file.id, filename=filename, bytes=output.bytes, sha256=output.sha256)
        end(session, lease, "succeeded", result=result.model_dump())
        message = f"Job succeeded: {file.id} holds {filename}, {output.bytes} bytes"
        add_event(session, lease.tenant_id, lease.job_id, NewEvent(message))
        session.refresh(file)
        return file
