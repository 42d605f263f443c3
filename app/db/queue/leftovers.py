"""What a job keeps for its next attempt, and what an attempt left half done: gone when the job has ended."""

from sqlalchemy.orm import Session

from app.db.blobs import drop_staged_blob
from app.db.queue.snapshots import drop_snapshots


def drop_leftovers(session: Session, tenant_id: str, job_id: str) -> None:
    """Delete a job's resume points and an output that was not stored to its end."""
    drop_snapshots(session, tenant_id, job_id)
    drop_staged_blob(session, tenant_id, job_id)
