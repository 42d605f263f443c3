"""The loop's promises about time, with desks that only take notes."""

import threading
import time
from itertools import pairwise
from typing import cast

from workers.runtime.inference_desk import InferenceDesk
from workers.runtime.job_desk import JobDesk
from workers.runtime.loop import run_loop


class Desks:
    """Both desks at once: what is busy, how long work takes, and everything that was called."""

    def __init__(self, stopping: threading.Event, *, requests: int, slices: int, slice_seconds: float = 0.0) -> None:
        self.calls: list[str] = []
        self.requests, self.slices = requests, slices
        self.stopping, self.slice_seconds = stopping, slice_seconds
        self.now = 0.0

    def run(self, drain_seconds: float = 5.0) -> list[str]:
        """Run the loop until it ends; return what was called."""
        run_loop(
            cast(InferenceDesk, RequestDesk(self)),
            cast(JobDesk, TrainingDesk(self)),
            self.stopping,
            poll_seconds=0.01,
            drain_seconds=drain_seconds,
            clock=lambda: self.now,
        )
        return self.calls


class RequestDesk:
    """Takes `requests` steps of a millisecond to finish its requests."""

    away = False

    def __init__(self, desks: Desks) -> None:
        self.desks = desks

    @property
    def busy(self) -> bool:
        """Whether steps are left."""
        return self.desks.requests > 0

    @property
    def open_requests(self) -> int:
        """How many requests are left."""
        return int(self.busy)

    def receive(self, timeout: float, *, accept: bool) -> None:
        """Note how it was asked."""
        self.desks.calls.append(f"receive {'new' if accept else 'aborts'} {timeout:g}")

    def step(self) -> None:
        """Decode for a millisecond."""
        self.desks.calls.append("decode")
        self.desks.requests -= 1
        self.desks.now += 0.001

    def close(self) -> None:
        """Note it."""
        self.desks.calls.append("close")


class TrainingDesk:
    """Has a job of `slices` slices; the loop is stopped when it ends and no requests are left."""

    pause = 0.0

    @property
    def has_room(self) -> bool:
        """One job at a time."""
        return not self.busy

    def __init__(self, desks: Desks) -> None:
        self.desks = desks

    @property
    def busy(self) -> bool:
        """Whether slices are left."""
        return self.desks.slices > 0

    def look(self, *, woken: bool) -> None:
        """Note it, and let the loop end when nothing is left to do."""
        self.desks.calls.append(f"look {woken}")
        if self.desks.requests <= 0:
            self.desks.stopping.set()

    def step(self) -> None:
        """Train for some time."""
        self.desks.calls.append("train")
        self.desks.slices -= 1
        self.desks.now += self.desks.slice_seconds

    def abandon(self) -> None:
        """Note it."""
        self.desks.calls.append("abandon")


def test_an_idle_worker_waits_and_looks_for_a_job_when_woken() -> None:
    assert Desks(threading.Event(), requests=0, slices=0).run() == [
        "receive new 0.01",
        "look True",
        "close",
        "abandon",
    ]


def test_training_alone_is_not_held_up() -> None:
    calls = Desks(threading.Event(), requests=0, slices=3).run()
    assert [call for call in calls if call in ("train", "decode")] == ["train"] * 3


def test_after_a_long_slice_of_training_requests_get_their_share() -> None:
    calls = Desks(threading.Event(), requests=60, slices=3, slice_seconds=0.0095).run()
    work = [call for call in calls if call in ("train", "decode")]
    slices = [i for i, call in enumerate(work) if call == "train"]
    assert len(slices) == 3
    # Steps of 1 ms: 9.5 ms of training are paid back by ten of them.
    assert [after - before - 1 for before, after in pairwise(slices)] == [10, 10]


def test_stopping_takes_no_new_requests_and_ends_in_time() -> None:
    stopping = threading.Event()
    stopping.set()
    started = time.monotonic()
    calls = Desks(stopping, requests=10**9, slices=10**9).run(drain_seconds=0.1)
    assert time.monotonic() - started < 2
    assert calls[-2:] == ["close", "abandon"]
    assert {call for call in calls if call.startswith("receive")} == {"receive aborts 0"}
    assert {"decode", "train"} <= set(calls)


def test_stopping_lets_running_streams_end() -> None:
    stopping = threading.Event()
    stopping.set()
    assert Desks(stopping, requests=3, slices=0).run().count("decode") == 3
