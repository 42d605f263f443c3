"""Resume points of running jobs. The newest two are kept, so that a damaged one costs some steps and not the job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Select, delete, select
from sqlalchemy.orm import Session

from app.core.ids import new_id
from app.db.blobs import BlobCorruptError, delete_blob_if_unused, read_blob
from app.db.queue.lease import Lease, fence
from app.db.queue.staging import seal, stage_if_large
from app.db.session import Database
from app.db.tables import JobSnapshot

KEPT = 2


@dataclass(frozen=True)
class SavedSnapshot:
    """A resume point as it was saved: safetensors bytes and their manifest."""

    step: int
    tensors: bytes
    manifest: dict[str, object]


def save_snapshot(db: Database, lease: Lease, step: int, tensors: bytes, manifest: Mapping[str, object]) -> None:
    """Store a resume point, replacing one of the same step, and drop all but the newest two. Raises StaleLeaseError."""
    stored = stage_if_large(db, lease, tensors)
    with db.write() as session:
        fence(session, lease)
        rows = session.scalars(_newest_first(lease.tenant_id, lease.job_id)).all()
        older = [row for row in rows if row.step < step]
        _drop(session, [row for row in rows if row.step >= step] + older[KEPT - 1 :])
        blob = seal(session, lease.tenant_id, stored)
        session.add(
            JobSnapshot(
                id=new_id("snap"),
                tenant_id=lease.tenant_id,
                job_id=lease.job_id,
                step=step,
                tensors_id=blob.id,
                manifest=dict(manifest),
            )
        )


def load_snapshot(session: Session, tenant_id: str, job_id: str) -> SavedSnapshot | None:
    """Return the newest resume point whose bytes are undamaged, or None."""
    for row in session.scalars(_newest_first(tenant_id, job_id)).all():
        try:
            tensors = read_blob(session, tenant_id, row.tensors_id)
        except BlobCorruptError:
            continue
        return SavedSnapshot(step=row.step, tensors=tensors, manifest=row.manifest)
    return None


def drop_snapshots(session: Session, tenant_id: str, job_id: str) -> None:
    """Delete all resume points of a job that has ended."""
    _drop(session, session.scalars(_newest_first(tenant_id, job_id)).all())


def _newest_first(tenant_id: str, job_id: str) -> Select[JobSnapshot]:
    mine = (JobSnapshot.tenant_id == tenant_id, JobSnapshot.job_id == job_id)
    return select(JobSnapshot).where(*mine).order_by(JobSnapshot.step.desc())


def _drop(session: Session, rows: Sequence[JobSnapshot]) -> None:
    for row in rows:
        session.execute(delete(JobSnapshot).where(JobSnapshot.id == row.id))
        delete_blob_if_unused(session, row.tenant_id, row.tensors_id)
