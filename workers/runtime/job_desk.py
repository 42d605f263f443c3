"""Claims jobs and runs the claimed ones side by side, slice by slice, with their leases kept alive."""

import time
from collections.abc import Sequence

import redis
import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.bus.wakeups import notify_job
from app.contracts.merge import MergeConfig
from app.contracts.training import JobConfig
from app.db import queue
from app.db.queue import ClaimedJob, ClaimedMerge
from workers.runtime.heartbeat import Heartbeat
from workers.runtime.job_runner import JobRoom, run_job
from workers.runtime.merge_runner import run_merge
from workers.training.pool import RunPool
from workers.training.work import Working

log = structlog.get_logger()


class JobDesk:
    """Up to one job a slot, of one base model."""

    def __init__(
        self,
        room: JobRoom,
        heartbeat: Heartbeat,
        bus: redis.Redis,
        *,
        slots: Sequence[int],
        worker_id: str,
        lease_seconds: float,
        max_attempts: int,
        poll_seconds: float,
    ) -> None:
        """`slots` are the bank's training slots."""
        self._room, self._heartbeat, self._bus = room, heartbeat, bus
        self._worker_id, self._lease_seconds, self._max_attempts = worker_id, lease_seconds, max_attempts
        self._poll_seconds = poll_seconds
        self._pool = RunPool(room.model, room.bank.parameters, tokens_per_pass=room.tokens_per_step)
        self._free = list(reversed(slots))
        self._jobs: dict[str, tuple[ClaimedJob | ClaimedMerge, int]] = {}
        """By attempt: a lost lease may be claimed here again before its first run has noticed."""
        self._look_again_at = 0.0

    @property
    def busy(self) -> bool:
        """Whether a job is running here."""
        return bool(self._jobs)

    @property
    def running(self) -> int:
        """How many jobs run here."""
        return len(self._jobs)

    @property
    def free_slots(self) -> int:
        """How many more jobs could run here."""
        return len(self._free)

    @property
    def has_room(self) -> bool:
        """Whether another job could be claimed."""
        return bool(self._free)

    @property
    def pause(self) -> float:
        """Seconds until a running job has something to do (0: now)."""
        return self._pool.pause

    @property
    def expected_seconds(self) -> float:
        """How long the next slice should take; 0 when nothing is known."""
        return self._pool.expected_seconds

    @property
    def pass_tokens(self) -> int:
        """Tokens of the pass that the last slice belonged to; 0: it was no part of one."""
        return self._pool.pass_tokens

    def limit_tokens(self, limit: int | None) -> None:
        """Let the passes from now on have at most so many tokens; None for as many as configured."""
        self._pool.tokens_per_pass = self._room.tokens_per_step if limit is None else limit

    def look(self, *, woken: bool) -> None:
        """Claim the next job if there is one; unless `woken`, look into the database every poll_seconds only."""
        if not self._free or (not woken and time.monotonic() < self._look_again_at):
            return
        try:
            job = queue.claim(
                self._room.database,
                worker_id=self._worker_id,
                base_model=self._room.info.id,
                lease_seconds=self._lease_seconds,
                max_attempts=self._max_attempts,
                fits=self._fits,
            )
        except SQLAlchemyError as error:
            log.warning("no job could be claimed", error=str(error))
            job = None
        if job is None:
            self._look_again_at = time.monotonic() + self._poll_seconds
            return
        self._look_again_at = 0.0
        log.info("job claimed", job=job.lease.job_id, tenant=job.lease.tenant_id, attempt=job.attempts)
        self._room.faults.hit("claim.after")
        self._start(job)

    def step(self) -> None:
        """Run one slice of one job, or of the pass that several share."""
        for run, ended in self._pool.step().items():
            self._leave(run, ended=ended)

    def abandon(self) -> None:
        """Stop jobs that did not come to a step's end in time: they go back as of their last snapshots."""
        for run in self._pool.close():
            job, _ = self._jobs[run]
            try:
                queue.give_back(self._room.database, job.lease)
            except (queue.StaleLeaseError, SQLAlchemyError) as error:
                log.warning("job left to its lease", job=job.lease.job_id, error=str(error))
            self._leave(run, ended=False)

    def _fits(self, kind: str, config: JobConfig | MergeConfig) -> bool:  # noqa: ARG002 (as claim asks)
        return isinstance(config, MergeConfig) or self._room.memory.fits(config)

    def _start(self, job: ClaimedJob | ClaimedMerge) -> None:
        run, slot = f"{job.lease.job_id}#{job.lease.token}", self._free.pop()
        self._jobs[run] = job, slot
        watch = self._heartbeat.watch(job.lease)
        steps: Working[float, bool]
        if isinstance(job, ClaimedMerge):
            steps = run_merge(self._room, job, watch)
        else:
            self._room.memory.take(run, job.config)
            steps = run_job(self._room, job, watch, slot)
        self._pool.add(run, steps, tenant=job.lease.tenant_id, weight=job.weight)

    def _leave(self, run: str, *, ended: bool) -> None:
        job, slot = self._jobs.pop(run)
        job_id = job.lease.job_id
        self._free.append(slot)
        self._room.memory.free(run)
        self._heartbeat.unwatch(job.lease)
        log.info("job left", job=job_id, ended=ended)
        if not ended:
            return
        try:
            notify_job(self._bus, job_id)
        except redis.RedisError as error:
            log.warning("nobody was told that the job ended", job=job_id, error=str(error))
