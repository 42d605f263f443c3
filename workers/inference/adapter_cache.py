"""Which adapter version sits in which serving slot.

Knows slots, pins and recency; the weights are loaded by the callable it is given. The key is tenant, adapter and
version, so one tenant's weights never answer another's request, and a slot loses its key before anything is written
into it.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.contracts.adapters import AdapterRef

BASE_ONLY = -1


class AdapterUnavailableError(Exception):
    """A version that cannot be served; the message is for the client, `status` the HTTP status it should see."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


@dataclass
class _Entry:
    slot: int
    pins: int = 0


class AdapterCache:
    """Least recently used versions make room; a pinned version stays."""

    def __init__(self, slots: Sequence[int], load: Callable[[AdapterRef, int], None]) -> None:
        """`load(ref, slot)` writes a version's weights into a slot or raises AdapterUnavailableError."""
        self._free = list(reversed(slots))
        self._load = load
        self._entries: OrderedDict[tuple[str, str, str], _Entry] = OrderedDict()

    def acquire(self, ref: AdapterRef | None) -> int | None:
        """Pin a version and return its slot, `BASE_ONLY` for no adapter, None while every slot is pinned.

        Raises AdapterUnavailableError when the version cannot be loaded.
        """
        if ref is None:
            return BASE_ONLY
        key = ref.key
        entry = self._entries.get(key)
        if entry is None:
            slot = self._take_slot()
            if slot is None:
                return None
            try:
                self._load(ref, slot)
            except BaseException:
                self._free.append(slot)
                raise
            entry = self._entries[key] = _Entry(slot)
        entry.pins += 1
        self._entries.move_to_end(key)
        return entry.slot

    def release(self, ref: AdapterRef | None) -> None:
        """Undo one `acquire`."""
        if ref is not None:
            self._entries[ref.key].pins -= 1

    def _take_slot(self) -> int | None:
        if self._free:
            return self._free.pop()
        key = next((key for key, entry in self._entries.items() if entry.pins == 0), None)
        return None if key is None else self._entries.pop(key).slot
