"""Writes a run's steps into the job's history, several at a time so that fast steps do not each cost a transaction."""

import time

import structlog

from app.contracts.training import StepMetrics
from app.db import queue
from app.db.repositories.jobs import NewEvent
from app.db.session import Database
from workers.runtime.heartbeat import LeaseWatch
from workers.runtime.retry import DATABASE_AWAY

log = structlog.get_logger()
MAX_STEPS, MAX_SECONDS = 20, 1.0
KEPT_WHILE_AWAY = 5000


class Recorder:
    """Holds the newest events of one job until they are written, at most 20 steps or a second later."""

    def __init__(self, database: Database, watch: LeaseWatch) -> None:
        """Each write also tells `watch` what the tenant asks for."""
        self._database, self._watch = database, watch
        self._latest: StepMetrics | None = None
        self._events: list[NewEvent] = []
        self._steps = 0
        self._written_at = time.monotonic()

    def note(self, message: str) -> None:
        """Add a plain line."""
        self._events.append(NewEvent(message))

    def warn(self, message: str) -> None:
        """Add a line about something that went wrong and was dealt with."""
        self._events.append(NewEvent(message, level="warn"))

    def step(self, metrics: StepMetrics) -> None:
        """Add one optimizer step, and write when it is time. Raises StaleLeaseError."""
        place = f"Step {metrics.step}/{metrics.total_steps}"
        loss = "not finite" if metrics.loss is None else f"{metrics.loss:.4f}"
        message = f"{place}: training loss={loss}" + (" (step skipped)" if metrics.skipped else "")
        self._events.append(NewEvent(message, type="metrics", data=metrics.model_dump(mode="json")))
        self._latest = metrics
        self._steps += 1
        if self._steps >= MAX_STEPS or time.monotonic() - self._written_at >= MAX_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is held; while the database is away, keep it for the next time. Raises StaleLeaseError."""
        self._written_at = time.monotonic()
        self._steps = 0
        if not self._events:
            return
        try:
            asked = queue.record_progress(self._database, self._watch.lease, self._latest, self._events)
        except DATABASE_AWAY as error:
            log.warning("progress kept for later", job=self._watch.lease.job_id, error=str(error.orig))
            del self._events[:-KEPT_WHILE_AWAY]
            return
        self._watch.hear(asked)
        self._events = []
