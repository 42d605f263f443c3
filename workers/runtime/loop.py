"""The worker's one loop: take requests, decode a step, train a slice, look for a job. One thread, cooperative."""

import threading
import time
from collections.abc import Callable

import structlog

from workers.runtime.inference_desk import InferenceDesk
from workers.runtime.job_desk import JobDesk
from workers.runtime.time_share import TimeShare

log = structlog.get_logger()
LONGEST_NAP_SECONDS = 0.1
"""While the running job waits for the database and nobody decodes."""


def run_loop(
    desk: InferenceDesk,
    jobs: JobDesk,
    stopping: threading.Event,
    *,
    poll_seconds: float,
    drain_seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Work until `stopping`, then finish running streams and hand the job back within `drain_seconds`.

    `clock` (seconds) measures the shares of training and decoding.
    """
    share = TimeShare(clock)
    while not stopping.is_set():
        idle = not desk.busy and not jobs.busy
        _receive(desk, stopping, poll_seconds if idle else 0.0)
        if jobs.has_room:
            jobs.look(woken=idle)
        _work(desk, jobs, share)
    log.info("stopping", requests=desk.open_requests, training=jobs.busy)
    deadline = time.monotonic() + drain_seconds
    while (desk.busy or jobs.busy) and time.monotonic() < deadline:
        desk.receive(0.0, accept=False)
        _work(desk, jobs, share)
    desk.close()
    jobs.abandon()


def _receive(desk: InferenceDesk, stopping: threading.Event, timeout: float) -> None:
    if desk.away and timeout:
        stopping.wait(timeout)
    desk.receive(timeout, accept=True)


def _work(desk: InferenceDesk, jobs: JobDesk, share: TimeShare) -> None:
    if desk.busy:
        with share.decoding():
            desk.step()
    else:
        share.forgive()
    if not jobs.busy:
        return
    if jobs.pause and not desk.busy:
        time.sleep(min(jobs.pause, LONGEST_NAP_SECONDS))
    elif not jobs.pause and share.training_is_due:
        with share.training():
            jobs.step()
