"""Keeps and finds a running job's resume points in the database."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
SLOW_SECONDS = 0.5
RESTS = 9
"""How many times as long as a slow resume point took the run goes on before the next."""


class SnapshotPace:
    """Says when a resume point is due: every so many steps, but slow ones take at most a tenth of the time."""

    def __init__(self, every_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_steps, self._clock = every_steps, clock
        self._not_before = 0.0

    def due(self, step: int) -> bool:
        """Whether to take one after this optimizer step."""
        return step % self._every_steps == 0 and self._clock() >= self._not_before

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Time a resume point; a slow one puts the next off."""
        start = self._clock()
        yield
        end = self._clock()
        if end - start > SLOW_SECONDS:
            self._not_before = end + RESTS * (end - start)


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
