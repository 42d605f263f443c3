"""The worker's one loop: take requests, look for jobs, decode a step, train while the time share lets it.

One thread, cooperative.
"""

import threading
import time

import structlog

from workers.runtime.inference_desk import InferenceDesk
from workers.runtime.job_desk import JobDesk
from workers.runtime.time_share import TimeShare

log = structlog.get_logger()
LONGEST_NAP_SECONDS = 0.1
"""While running jobs wait for the database and nobody decodes."""
MOST_SLICES = 64
"""Between two decode steps, however short they are: requests must be heard."""


def run_loop(
    desk: InferenceDesk,
    jobs: JobDesk,
    stopping: threading.Event,
    share: TimeShare,
    *,
    poll_seconds: float,
    drain_seconds: float,
) -> None:
    """Work until `stopping`, then finish running streams and hand jobs back within `drain_seconds`."""
    while not stopping.is_set():
        idle = not desk.busy and not jobs.busy
        woken = _receive(desk, jobs, stopping, poll_seconds if idle else _nap(desk, jobs))
        if jobs.has_room:
            jobs.look(woken=woken or idle)
        _work(desk, jobs, share)
    desk.leave()
    log.info("stopping", requests=desk.open_requests, training=jobs.busy)
    deadline = time.monotonic() + drain_seconds
    while (desk.busy or jobs.busy) and time.monotonic() < deadline:
        desk.receive(0.0, accept=False)
        _work(desk, jobs, share)
        time.sleep(_nap(desk, jobs))
    desk.close()
    jobs.abandon()


def _nap(desk: InferenceDesk, jobs: JobDesk) -> float:
    """Return for how many seconds there is nothing to do but to listen, while jobs are open."""
    return min(jobs.pause, LONGEST_NAP_SECONDS) if jobs.busy and not desk.busy else 0.0


def _receive(desk: InferenceDesk, jobs: JobDesk, stopping: threading.Event, timeout: float) -> bool:
    """Take in requests; return whether the bus said that a job waits."""
    if desk.away and timeout:
        stopping.wait(timeout)
    return desk.receive(timeout, accept=True, wakeups=jobs.has_room)


def _work(desk: InferenceDesk, jobs: JobDesk, share: TimeShare) -> None:
    """Decode a step if anybody waits for one, and train: one slice, or what fits before the next decode step."""
    if desk.busy:
        with share.decoding():
            desk.step()
    if not desk.busy:
        share.quiet()
        if _trainable(jobs):
            _train(jobs, share)
        return
    for _ in range(MOST_SLICES):
        if not _trainable(jobs):
            share.nothing_to_train()
            return
        if not share.fits(jobs.expected_seconds):
            return
        _train(jobs, share)


def _trainable(jobs: JobDesk) -> bool:
    return jobs.busy and not jobs.pause


def _train(jobs: JobDesk, share: TimeShare) -> None:
    jobs.limit_tokens(share.limit_tokens)
    with share.training():
        jobs.step()
    share.slice_of(jobs.pass_tokens)
