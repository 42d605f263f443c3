"""A thread that says "I live" for the worker and for its jobs, whatever the main thread is busy with.

It has database and Redis connections of its own. What it learns (a cancelled job, a lost lease) it writes into the
LeaseWatch, which the main thread reads between slices; it never touches the work itself.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import redis
import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.bus import presence
from app.contracts.workers import WorkerState
from app.db import queue
from app.db.queue import Asked, Lease, StaleLeaseError
from app.db.repositories import workers
from app.db.session import Database

log = structlog.get_logger()
PRESENCE_BEATS = 3
"""A worker counts as gone after missing this many beats."""
LONGEST_GOODBYE_SECONDS = 5.0
"""A beat that waits for a silent database must not hold up the end of the process."""


@dataclass
class LeaseWatch:
    """What is known of a lease. Written by the heartbeat thread and as progress is stored, read by the main thread."""

    lease: Lease
    cancel_requested: bool = False
    pause_requested: bool = False
    lost: bool = False

    def hear(self, asked: Asked) -> None:
        """Take note of what the job's tenant asks for now."""
        self.cancel_requested |= asked.cancel
        self.pause_requested = asked.pause


class Heartbeat:
    """Beats every `seconds` from `start()` to `stop()`."""

    def __init__(
        self,
        database: Database,
        bus: redis.Redis,
        *,
        worker_id: str,
        base_model: str,
        seconds: float,
        lease_seconds: float,
    ) -> None:
        """`database` and `bus` belong to this thread alone; `stop()` closes them."""
        self._database, self._bus = database, bus
        self._worker_id, self._base_model = worker_id, base_model
        self._seconds, self._lease_seconds = seconds, lease_seconds
        self._watches: dict[Lease, LeaseWatch] = {}
        self._stopping = threading.Event()

    def start(self, state: Callable[[], WorkerState]) -> None:
        """Begin to beat; the first beat is at once. `state` is asked in the beating thread what the worker tells."""
        self._thread = threading.Thread(target=self._run, args=(state,), name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Say no more, and close the thread's connections."""
        self._stopping.set()
        self._thread.join(LONGEST_GOODBYE_SECONDS)
        self._database.dispose()
        self._bus.close()

    def watch(self, lease: Lease) -> LeaseWatch:
        """Keep a lease alive until `unwatch()`."""
        watch = self._watches[lease] = LeaseWatch(lease)
        return watch

    def unwatch(self, lease: Lease) -> None:
        """Let a lease be: it is finished, given back or lost."""
        self._watches.pop(lease, None)

    def _run(self, state: Callable[[], WorkerState]) -> None:
        while True:
            self._guarded("presence", self._announce)
            self._guarded("worker row", partial(self._renew_worker, state))
            for watch in list(self._watches.values()):
                self._guarded("lease", partial(self._renew_lease, watch))
            if self._stopping.wait(self._seconds):
                return

    def _guarded(self, what: str, beat: Callable[[], None]) -> None:
        try:
            beat()
        except (SQLAlchemyError, redis.RedisError) as error:
            log.warning("heartbeat failed", what=what, error=str(error))

    def _announce(self) -> None:
        presence.announce(self._bus, self._worker_id, self._base_model, PRESENCE_BEATS * self._seconds)

    def _renew_worker(self, state: Callable[[], WorkerState]) -> None:
        told = state()
        with self._database.write() as session:
            workers.heartbeat(session, self._worker_id, told)

    def _renew_lease(self, watch: LeaseWatch) -> None:
        if watch.lost:
            return
        try:
            watch.hear(queue.heartbeat(self._database, watch.lease, self._lease_seconds))
        except StaleLeaseError:
            watch.lost = True
