"""Claims jobs and runs the claimed one slice by slice, with its lease kept alive."""

import time

import redis
import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.bus.wakeups import notify_job
from app.db import queue
from app.db.queue import ClaimedJob, ClaimedMerge
from workers.runtime.heartbeat import Heartbeat
from workers.runtime.job_runner import JobRoom, run_job
from workers.runtime.merge_runner import run_merge
from workers.runtime.retry import Pauses

log = structlog.get_logger()


class JobDesk:
    """At most one job at a time, of one base model."""

    def __init__(
        self,
        room: JobRoom,
        heartbeat: Heartbeat,
        bus: redis.Redis,
        *,
        worker_id: str,
        lease_seconds: float,
        max_attempts: int,
        poll_seconds: float,
    ) -> None:
        self._room, self._heartbeat, self._bus = room, heartbeat, bus
        self._worker_id, self._lease_seconds, self._max_attempts = worker_id, lease_seconds, max_attempts
        self._poll_seconds = poll_seconds
        self._job: ClaimedJob | ClaimedMerge | None = None
        self._slices: Pauses[bool] | None = None
        self._resume_at = 0.0
        self._look_again_at = 0.0

    @property
    def busy(self) -> bool:
        """Whether a job is running here."""
        return self._job is not None

    @property
    def pause(self) -> float:
        """Seconds until the running job has something to do (0: now)."""
        return max(0.0, self._resume_at - time.monotonic())

    def look(self, *, woken: bool) -> None:
        """Claim the next job if there is one; unless `woken`, look into the database every poll_seconds only."""
        if not woken and time.monotonic() < self._look_again_at:
            return
        try:
            job = queue.claim(
                self._room.database,
                worker_id=self._worker_id,
                base_model=self._room.info.id,
                lease_seconds=self._lease_seconds,
                max_attempts=self._max_attempts,
            )
        except SQLAlchemyError as error:
            log.warning("no job could be claimed", error=str(error))
            job = None
        if job is None:
            self._look_again_at = time.monotonic() + self._poll_seconds
            return
        log.info("job claimed", job=job.lease.job_id, tenant=job.lease.tenant_id, attempt=job.attempts)
        self._room.faults.hit("claim.after")
        self._job, self._resume_at, self._look_again_at = job, 0.0, 0.0
        watch = self._heartbeat.watch(job.lease)
        if isinstance(job, ClaimedMerge):
            self._slices = run_merge(self._room, job, watch)
        else:
            self._slices = run_job(self._room, job, watch)

    def step(self) -> None:
        """Run one slice of the job."""
        assert self._slices is not None
        try:
            self._resume_at = time.monotonic() + next(self._slices)
        except StopIteration as stop:
            self._leave(ended=stop.value)

    def abandon(self) -> None:
        """Stop a job that did not come to a step's end in time: it goes back as of its last snapshot."""
        if self._job is None or self._slices is None:
            return
        self._slices.close()
        try:
            queue.give_back(self._room.database, self._job.lease)
        except (queue.StaleLeaseError, SQLAlchemyError) as error:
            log.warning("job left to its lease", job=self._job.lease.job_id, error=str(error))
        self._leave(ended=False)

    def _leave(self, *, ended: bool) -> None:
        assert self._job is not None
        job_id = self._job.lease.job_id
        self._heartbeat.unwatch()
        self._job = self._slices = None
        log.info("job left", job=job_id, ended=ended)
        if not ended:
            return
        try:
            notify_job(self._bus, job_id)
        except redis.RedisError as error:
            log.warning("nobody was told that the job ended", job=job_id, error=str(error))
