"""The loop's promises about time, with desks that only take notes. Everything is simulated: a clock moved by work."""

import threading
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import pytest

from workers.runtime import loop
from workers.runtime.inference_desk import InferenceDesk
from workers.runtime.job_desk import JobDesk
from workers.runtime.loop import run_loop
from workers.runtime.time_share import TimeShare

MS = 0.001


@dataclass
class World:
    """What is to be done, what it takes, and all that was called with the time at its end.

    `requests` decode steps and `passes` training passes of `slices` slices are left. A slice takes `overhead` and
    `token_seconds` for each of its pass's tokens; a pass has `full` tokens, or as many as the limit allows.
    """

    requests: int = 0
    passes: int = 0
    slices: int = 4
    full: int = 100
    decode_seconds: float = MS
    token_seconds: float = 0.0
    overhead: float = MS
    target: float | None = None
    share: float = 0.25
    pause: float = 0.0
    room: int = 0
    drain_seconds: float = 0.0
    until: float = 1000.0
    now: float = 0.0
    calls: list[str] = field(default_factory=list)
    ends: list[tuple[str, float]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.training = TrainingDesk(self)

    def run(self) -> list[str]:
        """Run the loop until it is stopped; return what was called."""
        share = TimeShare(lambda: self.now, target_seconds=self.target, smallest_train_share=self.share)
        run_loop(
            cast(InferenceDesk, RequestDesk(self)),
            cast(JobDesk, self.training),
            self.stopping,
            share,
            poll_seconds=0.01,
            drain_seconds=self.drain_seconds,
        )
        return self.calls

    def steps(self, share: TimeShare, count: int) -> None:
        """Do `count` rounds of work, each with a decode step while requests are left."""
        desk, jobs = cast(InferenceDesk, RequestDesk(self)), cast(JobDesk, self.training)
        for _ in range(count):
            loop._work(desk, jobs, share)

    def did(self, what: str, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.calls.append(what)
        self.ends.append((what, self.now))
        if self.now >= self.until:
            self.stopping.set()

    def gaps(self, after: float = 0.0) -> list[float]:
        """Return the seconds between the ends of one decode step and the next."""
        ends = [end for what, end in self.ends if what == "decode" and end >= after]
        return [later - sooner for sooner, later in pairwise(ends)]

    def trained(self, start: float, end: float) -> float:
        """Return training's share of the time from `start` to `end`."""
        spans = [(what, sooner, later) for (_, sooner), (what, later) in pairwise([("", 0.0), *self.ends])]
        return sum(later - sooner for what, sooner, later in spans if what == "train" and start < later <= end) / (
            end - start
        )


class RequestDesk:
    """Takes `requests` decode steps to finish its requests."""

    away = False

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def busy(self) -> bool:
        """Whether steps are left."""
        return self.world.requests > 0

    @property
    def open_requests(self) -> int:
        """How many requests are left."""
        return int(self.busy)

    def receive(self, timeout: float, *, accept: bool, wakeups: bool = False) -> bool:
        """Note how it was asked; wait as long as it may."""
        self.world.calls.append(f"receive {'new' if accept else 'aborts'} {timeout:g}{' or job' if wakeups else ''}")
        self.world.now += timeout
        if self.world.now >= self.world.until:
            self.world.stopping.set()
        return False

    def step(self) -> None:
        """Decode."""
        self.world.requests -= 1
        self.world.did("decode", self.world.decode_seconds)

    def leave(self) -> None:
        """Note it."""
        self.world.calls.append("leave")

    def close(self) -> None:
        """Note it."""
        self.world.calls.append("close")


class TrainingDesk:
    """Trains `passes` passes; the loop is stopped when they are done and no requests are left."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.limit: int | None = None
        self.pass_tokens = self.left = 0

    @property
    def busy(self) -> bool:
        """Whether passes are left."""
        return self.world.passes > 0

    @property
    def pause(self) -> float:
        """Seconds until something can be done."""
        return self.world.pause

    @property
    def has_room(self) -> bool:
        """Whether another job may come."""
        return not self.busy or self.world.room > 0

    @property
    def expected_seconds(self) -> float:
        """What the next slice takes; unknown before the first."""
        return self._seconds() if self.pass_tokens else 0.0

    def limit_tokens(self, limit: int | None) -> None:
        """Take the limit for passes to come."""
        self.limit = limit

    def look(self, *, woken: bool) -> None:
        """Note it, and let the loop end when nothing is left to do."""
        self.world.calls.append(f"look {woken}")
        if self.world.requests <= 0 and not self.busy:
            self.world.stopping.set()

    def step(self) -> None:
        """Train a slice, the first of a pass composes it."""
        if not self.left:
            self.left = self.world.slices
            self.pass_tokens = min(self.world.full, self.limit or self.world.full)
            self.world.sizes.append(self.pass_tokens)
        self.left -= 1
        self.world.passes -= not self.left
        self.world.did("train", self._seconds())

    def abandon(self) -> None:
        """Note it."""
        self.world.calls.append("abandon")

    def _seconds(self) -> float:
        return self.world.overhead + self.pass_tokens * self.world.token_seconds


def test_an_idle_worker_waits_and_looks_for_a_job_when_woken() -> None:
    assert World().run() == ["receive new 0.01 or job", "look True", "leave", "close", "abandon"]


def test_training_alone_runs_flat_out() -> None:
    world = World(passes=3, token_seconds=MS)
    assert world.run().count("train") == 12
    assert world.now == pytest.approx(3 * 4 * 0.101 + 0.01)
    assert world.sizes == [100, 100, 100]


def test_decoding_alone_runs_flat_out() -> None:
    world = World(requests=50)
    world.run()
    assert world.gaps() == pytest.approx([MS] * 49)


def test_a_desk_with_room_looks_for_more_jobs_while_it_trains_and_a_full_one_does_not() -> None:
    busy = World(passes=1, room=1).run()
    assert busy[:6] == ["receive new 0 or job", "look False", "train", "receive new 0 or job", "look False", "train"]
    assert World(passes=1).run()[:4] == ["receive new 0", "train", "receive new 0", "train"]


def test_jobs_that_wait_let_the_worker_listen_and_not_spin() -> None:
    world = World(passes=1, pause=0.25, until=0.25)
    assert world.run()[:-3] == ["receive new 0.1"] * 3


def test_small_slices_fill_the_gap_and_keep_its_target() -> None:
    world = World(requests=200, passes=10**6, decode_seconds=10 * MS, overhead=4 * MS, target=25 * MS, until=2.0)
    world.run()
    # 25 ms less the decode step leaves room for three slices of 4 ms.
    assert {round(gap, 6) for gap in world.gaps(0.1)} == {0.022}


def test_without_a_target_a_gap_is_twice_a_decode_step_at_most() -> None:
    world = World(requests=10**6, passes=10**6, decode_seconds=10 * MS, overhead=3 * MS, until=2.0)
    world.run()
    assert max(world.gaps(0.1)) == pytest.approx(19 * MS)
    assert world.trained(0.5, 1.5) == pytest.approx(9 / 19, abs=0.01)


def test_a_slice_too_long_for_the_gap_waits_until_training_is_below_its_share() -> None:
    world = World(requests=10**6, passes=10**6, decode_seconds=10 * MS, overhead=50 * MS, until=10.0)
    world.run()
    long = [gap for gap in world.gaps(1.0) if gap > 11 * MS]
    assert {round(gap, 6) for gap in long} == {0.06}
    assert world.trained(2.0, 8.0) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(("share", "reached"), [(0.1, 0.1), (0.5, 0.5), (0.0, 0.0)])
def test_training_gets_its_smallest_share_where_no_target_can_be_kept(share: float, reached: float) -> None:
    # Decoding alone takes longer than the target.
    world = World(
        requests=10**6, passes=10**6, decode_seconds=10 * MS, overhead=2 * MS, target=5 * MS, share=share, until=10.0
    )
    world.run()
    assert world.trained(1.0, 9.0) == pytest.approx(reached, abs=0.01)


def test_passes_shrink_until_their_slices_fit_and_the_gap_is_kept() -> None:
    world = World(
        requests=10**6, passes=10**6, decode_seconds=10 * MS, overhead=MS, token_seconds=MS, full=200, until=30.0
    )
    world.run()
    assert world.sizes[0] == 200
    # 1 ms and 1 ms a token: eight or nine tokens would fit 10 ms, but no pass is smaller than this.
    assert world.sizes[-1] == 16
    world = World(
        requests=10**6, passes=10**6, decode_seconds=10 * MS, overhead=MS, token_seconds=0.1 * MS, full=200, until=30.0
    )
    world.run()
    # 10 ms less 1 ms of overhead are 90 tokens of 0.1 ms; a tenth is left as headroom.
    assert 70 <= world.sizes[-1] <= 90
    assert max(world.gaps(20.0)) <= 20 * MS
    assert world.trained(20.0, 30.0) > 0.4


def test_passes_are_full_again_when_nobody_decodes() -> None:
    world = World(requests=400, passes=900, decode_seconds=10 * MS, overhead=0, token_seconds=0.1 * MS, full=400)
    world.run()
    assert world.sizes[0] == 400
    assert min(world.sizes) == 90
    assert world.sizes[-1] == 400
    assert world.requests == 0


def test_passes_grow_with_the_decode_step() -> None:
    world = World(requests=10**6, passes=10**6, decode_seconds=10 * MS, overhead=0, token_seconds=0.1 * MS, full=400)
    share = TimeShare(lambda: world.now)
    world.steps(share, 400)
    assert world.sizes[-1] in (89, 90)
    world.decode_seconds = 40 * MS
    world.steps(share, 400)
    assert world.sizes[-1] in (359, 360)


def test_an_old_surplus_of_training_is_not_held_against_it_for_long() -> None:
    world = World(requests=10**6, passes=10**6, decode_seconds=10 * MS, overhead=29 * MS)
    share = TimeShare(lambda: world.now, target_seconds=100 * MS)
    world.steps(share, 100)
    assert max(world.gaps(1.0)) == pytest.approx(97 * MS)
    # From here decoding alone is over the target. Two seconds' surplus is 0.5 s of training, paid off in 1.5 s once
    # the change is noticed.
    start, world.decode_seconds = world.now, 110 * MS
    world.steps(share, 200)
    later = start + 5.0
    assert world.trained(later, later + 10) == pytest.approx(0.25, abs=0.02)


def test_training_that_had_nothing_to_do_saves_up_no_time() -> None:
    world = World(requests=10**6, passes=0, decode_seconds=10 * MS, overhead=30 * MS)
    share = TimeShare(lambda: world.now)
    world.steps(share, 100)
    world.passes = 100
    world.steps(share, 100)
    assert max(world.gaps()) == pytest.approx(40 * MS)


def test_stopping_takes_no_new_requests_and_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(requests=10**9, passes=10**9, drain_seconds=0.1)
    monkeypatch.setattr(loop.time, "monotonic", lambda: world.now)
    world.stopping.set()
    calls = world.run()
    assert world.now < 0.11
    assert calls[0] == "leave"
    assert calls[-2:] == ["close", "abandon"]
    assert {call for call in calls if call.startswith("receive")} == {"receive aborts 0"}
    assert {"decode", "train"} <= set(calls)


def test_stopping_lets_running_streams_end() -> None:
    world = World(requests=3, drain_seconds=5.0)
    world.stopping.set()
    assert world.run().count("decode") == 3
