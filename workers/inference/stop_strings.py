"""Finds stop strings in text that arrives in pieces. Knows text only, neither tokens nor requests."""

from collections.abc import Sequence


class StopFilter:
    """Passes text through, holding back whatever might be the beginning of a stop string.

    The stop string that completes first wins (the longest of those that complete together), so the result does not
    depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Return `(text that may be shown, whether a stop string was completed)`; the stop string is never shown."""
        pending = self._held + text
        matches = [(pending.find(stop) + len(stop), pending.find(stop)) for stop in self._stops if stop in pending]
        if matches:
            self._held = ""
            return pending[: min(matches)[1]], True
        keep = self._possible_start(pending)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep], False

    def flush(self) -> str:
        """Return the text still held back; no stop string can complete any more."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        longest = min(len(text), max((len(stop) - 1 for stop in self._stops), default=0))
        return next(
            (size for size in range(longest, 0, -1) if any(stop.startswith(text[-size:]) for stop in self._stops)), 0
        )
