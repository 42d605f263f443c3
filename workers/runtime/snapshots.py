"""Keeps and finds a running job's resume points in the database."""

import structlog

from app.db import queue
from app.db.queue import Lease
from app.db.session import Database
from workers.runtime.fault_points import FaultPoints
from workers.runtime.recorder import Recorder
from workers.runtime.retry import DATABASE_AWAY, Pauses, patiently
from workers.training.errors import SnapshotError
from workers.training.snapshot import Snapshot
from workers.training.trainer import TrainingRun

log = structlog.get_logger()
READ_PATIENCE = 60.0


def save_snapshot(database: Database, lease: Lease, run: TrainingRun, faults: FaultPoints) -> None:
    """Store the run's state; while the database is away, go without. Raises StaleLeaseError."""
    faults.hit("snapshot.before")
    snapshot = run.snapshot()
    try:
        queue.save_snapshot(database, lease, snapshot.step, snapshot.tensors, snapshot.manifest)
    except DATABASE_AWAY as error:
        log.warning("snapshot skipped", job=lease.job_id, step=snapshot.step, error=str(error.orig))
    faults.hit("snapshot.after")


def resume(database: Database, lease: Lease, run: TrainingRun, recorder: Recorder) -> Pauses[None]:
    """Continue the run from its newest good snapshot, if there is one."""

    def load() -> Snapshot | None:
        with database.read() as session:
            saved = queue.load_snapshot(session, lease.tenant_id, lease.job_id)
        return None if saved is None else Snapshot(saved.step, saved.tensors, saved.manifest)

    snapshot = yield from patiently(load, what="read snapshot", patience=READ_PATIENCE)
    if snapshot is None:
        return
    try:
        run.restore(snapshot)
    except SnapshotError as error:
        log.warning("snapshot unusable, starting over", job=lease.job_id, step=snapshot.step, error=str(error))
        return
    recorder.note(f"Resumed after step {snapshot.step}")
