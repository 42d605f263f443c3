"""Shares one device between decoding and training: sizes the training slice between two decode steps.

It measures what a decode step takes, what a trained token costs, and how long the gap between two tokens has lasted.
Knows seconds and tokens; knows nothing of requests, jobs or the bus.

    target   the gap between tokens to keep: given, or twice the usual decode step
    budget   what training may take of a gap: the target less the decode step that ends it
    owed     seconds of training still missing to its smallest share of the time; below zero: more than that was given
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DEFAULT_TARGET_STEPS = 2.0
REMEMBERED_STEPS = 64
USUAL_STEPS = 16
"""The latest steps, whose median is what a step takes now."""
REMEMBERED_SLICES = 128
FEWEST_SLICES = 8
"""Measured before passes are resized, so that one slow slice resizes nothing."""
SMALLEST_PASS = 16
"""Tokens; below it a pass costs mostly its overhead."""
HEADROOM = 0.9
"""Passes are sized to this share of the budget: costs vary."""
WORTHWHILE = 1.25
"""A limit is raised only by at least this factor."""
WINDOW_SECONDS = 2.0
"""Over which training is held to its smallest share: an older surplus is forgotten."""
QUIET_SECONDS = 1.0
"""Without a decode step for so long, passes are full again."""


class TimeShare:
    """Decides whether a slice of training fits before the next decode step, and how large passes may be."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        *,
        target_seconds: float | None = None,
        smallest_train_share: float = 0.25,
    ) -> None:
        """`target_seconds` is the gap between tokens to keep; None means twice the usual decode step."""
        self._clock = clock
        self._target = target_seconds
        self._share = smallest_train_share
        self._steps: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._slices: deque[float] = deque(maxlen=FEWEST_SLICES)
        self._token_costs: deque[float] = deque(maxlen=REMEMBERED_SLICES)
        self._owed = 0.0
        self._gap_start = clock()
        self._full_pass = 0
        self.limit_tokens: int | None = None
        """How many tokens a training pass may have, None for as many as it likes."""

    @property
    def budget(self) -> float:
        """Seconds of training that fit between two decode steps."""
        if self._target is None:
            return (DEFAULT_TARGET_STEPS - 1) * self._usual_step
        if self._usual_step >= self._target:
            return 0.0
        # A rare step that is too long by itself (a prompt coming in) says nothing of what training may take.
        fitting = sorted(step for step in self._steps if step < self._target)
        return self._target - _second_highest(fitting) if fitting else 0.0

    def fits(self, expected_seconds: float) -> bool:
        """Say whether a slice may run before the next decode step. Its expected time is 0 when nobody knows it."""
        if self._owed > 0:
            return True
        spent = self._clock() - self._gap_start
        expected = expected_seconds or max(self._slices, default=0.0)
        return spent < self.budget and spent + expected <= self.budget

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Time a decode step; the next gap begins at its end."""
        start = self._clock()
        yield
        self._gap_start = self._clock()
        seconds = self._gap_start - start
        self._steps.append(seconds)
        self._owed += seconds * self._share / (1 - self._share)
        self._resize()

    @contextmanager
    def training(self) -> Iterator[None]:
        """Time a slice of training. Tell `slice_of` whose it was."""
        start = self._clock()
        yield
        seconds = self._clock() - start
        self._slices.append(seconds)
        self._owed = max(self._owed, -WINDOW_SECONDS * self._share) - seconds

    def slice_of(self, pass_tokens: int) -> None:
        """Say that the last slice belonged to a pass of so many tokens; 0 if it was no part of a pass."""
        if pass_tokens:
            self._token_costs.append(self._slices[-1] / pass_tokens)
            if self.limit_tokens is None:
                self._full_pass = max(self._full_pass, pass_tokens)

    def quiet(self) -> None:
        """Nobody decodes: nothing is owed, and after a while passes are full again."""
        self._owed = 0.0
        if self.limit_tokens is not None and self._clock() - self._gap_start >= QUIET_SECONDS:
            self._limit(None)

    def nothing_to_train(self) -> None:
        """No job can go on now: training misses nothing."""
        self._owed = min(self._owed, 0.0)

    @property
    def _usual_step(self) -> float:
        steps = sorted([*self._steps][-USUAL_STEPS:])
        return steps[len(steps) // 2] if steps else 0.0

    def _resize(self) -> None:
        if len(self._token_costs) < FEWEST_SLICES:
            return
        # The costliest slice of a pass must fit.
        cost = _second_highest(sorted(self._token_costs))
        wanted = max(SMALLEST_PASS, int(HEADROOM * (self.budget or self._usual_step) / cost))
        limit = self.limit_tokens or self._full_pass
        if wanted >= self._full_pass:
            if self.limit_tokens is not None:
                self._limit(None)
        elif wanted < HEADROOM * limit or wanted > WORTHWHILE * limit:
            self._limit(wanted)

    def _limit(self, tokens: int | None) -> None:
        self.limit_tokens = tokens
        # Costs by token differ with the size of the pass.
        self._token_costs.clear()


def _second_highest(ascending: list[float]) -> float:
    """A single hiccup counts for nothing."""
    return ascending[-2:][0]
