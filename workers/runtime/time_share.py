"""Shares one device between decoding and training: after a slice of training, requests get as much time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TimeShare:
    """Counts the seconds that decoding is owed."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._owed = 0.0

    @property
    def training_is_due(self) -> bool:
        """Whether decoding has had its share."""
        return self._owed <= 0

    @contextmanager
    def training(self) -> Iterator[None]:
        """Time a slice of training, which decoding is then owed."""
        start = self._clock()
        yield
        self._owed = self._clock() - start

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Time a step of decoding."""
        start = self._clock()
        yield
        self._owed -= self._clock() - start

    def forgive(self) -> None:
        """Nobody decodes: nothing is owed."""
        self._owed = 0.0
