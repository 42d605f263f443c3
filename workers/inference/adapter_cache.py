"""Which adapter version sits in which serving slot.

Knows slots, pins, recency and bytes; weights come from a source that may need time to bring them, and a bank puts them
into slots. The key is tenant, adapter and version, so one tenant's weights never answer another's request; a slot gets
its key only when its weights are in place, and is empty before it is given to another.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from app.contracts.adapters import AdapterRef, VersionKey
from workers.lora.adapter import AdapterWeights

BASE_ONLY = -1


class AdapterUnavailableError(Exception):
    """A version that cannot be served; the message is for the client, `status` the HTTP status it should see."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class NoRoomError(Exception):
    """A version's bytes do not fit beside the pinned ones. What is freed is meant for it, so others must not pass."""


@dataclass(frozen=True)
class SourceCounts:
    """What a source has done and holds: counts since the start, and bytes of host memory."""

    host_hits: int = 0
    database_loads: int = 0
    failed_loads: int = 0
    pending_loads: int = 0
    host_versions: int = 0
    host_bytes: int = 0


@dataclass(frozen=True)
class AdapterCacheStats:
    """A snapshot. Hits, loads and evictions are counts since the start; bytes are what is held now."""

    device_hits: int
    """Requests whose version was in a slot already."""
    evictions: int
    device_versions: int
    device_bytes: int
    source: SourceCounts


class AdapterSource(Protocol):
    """Where versions come from that are in no slot."""

    def get(self, ref: AdapterRef) -> AdapterWeights | None:
        """Return a version's weights, None while they are on their way. Raises AdapterUnavailableError."""

    def prefetch(self, ref: AdapterRef) -> None:
        """Begin to bring a version's weights, if there is room for another load."""

    def wait(self, seconds: float) -> None:
        """Wait until a load on its way has ended, at most so long; return at once where none is on its way."""

    def counts(self) -> SourceCounts:
        """Return the source's counts."""


class SlotBank(Protocol):
    """What the cache needs of an AdapterBank."""

    def load(self, slot: int, adapter: AdapterWeights) -> None:
        """Copy weights into a slot. Raises ValueError."""

    def clear(self, slot: int) -> None:
        """Empty a slot."""

    def served_bytes(self, adapter: AdapterWeights) -> int:
        """Return how many bytes a slot with these weights takes."""


@dataclass
class _Entry:
    slot: int
    bytes: int
    pins: int = 0


class AdapterCache:
    """Least recently used versions make room; a pinned version stays."""

    def __init__(
        self, slots: Sequence[int], source: AdapterSource, bank: SlotBank, *, max_bytes: int | None = None
    ) -> None:
        """All versions in `slots` together take at most `max_bytes`."""
        self._free = list(reversed(slots))
        self._source, self._bank, self._max_bytes = source, bank, max_bytes
        self._entries: OrderedDict[VersionKey, _Entry] = OrderedDict()
        self._hits = self._evictions = 0

    def acquire(self, ref: AdapterRef | None) -> int | None:
        """Pin a version and return its slot, `BASE_ONLY` for no adapter, None while it loads or all slots are pinned.

        Raises AdapterUnavailableError when the version cannot be loaded, NoRoomError while pinned ones fill the memory.
        """
        if ref is None:
            return BASE_ONLY
        entry = self._entries.get(ref.key)
        if entry is not None:
            self._hits += 1
        else:
            entry = self._bring(ref)
        if entry is None:
            return None
        entry.pins += 1
        self._entries.move_to_end(ref.key)
        return entry.slot

    def release(self, ref: AdapterRef | None) -> None:
        """Undo one `acquire`."""
        if ref is not None:
            self._entries[ref.key].pins -= 1

    def prefetch(self, ref: AdapterRef | None) -> None:
        """Begin to load a version that will be asked for; at most a hint."""
        if ref is not None and ref.key not in self._entries:
            self._source.prefetch(ref)

    def wait(self, seconds: float) -> None:
        """Wait for a load to end, at most so long; return at once where none is on its way."""
        self._source.wait(seconds)

    def versions(self) -> list[VersionKey]:
        """Return the versions in slots, least recently used first; any thread may ask."""
        return list(self._entries)

    def stats(self) -> AdapterCacheStats:
        """Return a snapshot of the counters; any thread may ask."""
        return AdapterCacheStats(
            device_hits=self._hits,
            evictions=self._evictions,
            device_versions=len(self._entries),
            device_bytes=self._bytes(),
            source=self._source.counts(),
        )

    def _bring(self, ref: AdapterRef) -> _Entry | None:
        if not self._free and all(entry.pins for entry in self._entries.values()):
            self._source.prefetch(ref)
            return None
        weights = self._source.get(ref)
        if weights is None:
            return None
        size = self._bank.served_bytes(weights)
        self._make_room(ref, size)
        slot = self._free[-1]
        try:
            self._bank.load(slot, weights)
        except (ValueError, torch.OutOfMemoryError) as error:
            self._bank.clear(slot)
            raise _refusal(ref, error) from error
        self._free.pop()
        entry = self._entries[ref.key] = _Entry(slot, size)
        return entry

    def _make_room(self, ref: AdapterRef, size: int) -> None:
        limit = self._max_bytes
        if limit is not None and size > limit:
            raise AdapterUnavailableError(
                507,
                "adapter_too_large",
                f"version {ref.version_id} takes {size} bytes; a worker here keeps {limit} for adapters",
            )
        if limit is not None and size > limit - sum(entry.bytes for entry in self._entries.values() if entry.pins):
            raise NoRoomError(ref.version_id)
        while not self._free or (limit is not None and size > limit - self._bytes()):
            key = next(key for key, entry in self._entries.items() if not entry.pins)
            slot = self._entries.pop(key).slot
            self._bank.clear(slot)
            self._free.append(slot)
            self._evictions += 1

    def _bytes(self) -> int:
        return sum(entry.bytes for entry in list(self._entries.values()))


def _refusal(ref: AdapterRef, error: Exception) -> AdapterUnavailableError:
    if isinstance(error, torch.OutOfMemoryError):
        return AdapterUnavailableError(
            503, "adapter_out_of_memory", f"the worker has no memory left for version {ref.version_id}, try again"
        )
    return AdapterUnavailableError(500, "adapter_unusable", f"version {ref.version_id} cannot be served: {error}")
