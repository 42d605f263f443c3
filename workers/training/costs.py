"""What slices of training cost, measured as they go. Knows kinds, tokens and seconds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

NEWEST = 0.3
"""Weight of the newest measurement."""


class SliceCosts:
    """A moving average of the seconds per token of each kind of slice."""

    def __init__(self) -> None:
        self._per_token: dict[str, float] = {}

    @contextmanager
    def timing(self, kind: str, tokens: int, clock: Callable[[], float]) -> Iterator[None]:
        """Measure one slice, also one that raises."""
        start = clock()
        try:
            yield
        finally:
            measured = (clock() - start) / tokens
            known = self._per_token.get(kind, measured)
            self._per_token[kind] = known + NEWEST * (measured - known)

    def expected(self, kind: str, tokens: int) -> float:
        """Return the seconds that a slice should take, 0 when none of its kind was measured."""
        return self._per_token.get(kind, 0.0) * tokens
