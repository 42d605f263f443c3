"""Measures how long a run has been at work, over all processes that worked on it. Knows nothing of training."""

from collections.abc import Callable
from time import perf_counter


class RunClock:
    """Runs from `start()` on, beginning at the seconds counted before."""

    def __init__(self, seconds: float = 0.0, now: Callable[[], float] = perf_counter) -> None:
        self._seconds, self._now = seconds, now
        self._since: float | None = None

    def start(self) -> None:
        """Begin to count."""
        self._since = self._now()

    def elapsed(self) -> float:
        """Return the seconds counted so far."""
        return self._seconds + (0.0 if self._since is None else self._now() - self._since)
