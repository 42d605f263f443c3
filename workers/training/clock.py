"""Measures time spent inside an iterator, leaving out what its caller does between items. Knows nothing of training."""

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")


class SliceClock:
    """Runs only while the next item is being made."""

    def __init__(self, seconds: float = 0.0, now: Callable[[], float] = perf_counter) -> None:
        self._seconds = seconds
        self._now = now
        self._since: float | None = None

    def elapsed(self) -> float:
        """Return the seconds counted so far, the present item's included."""
        return self._seconds + (0.0 if self._since is None else self._now() - self._since)

    def timed(self, items: Iterator[T]) -> Iterator[T]:
        """Yield `items`, counting the time each took to make."""
        while True:
            self._since = self._now()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self._seconds, self._since = self.elapsed(), None
            yield item
