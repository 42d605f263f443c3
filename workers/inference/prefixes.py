"""Beginnings of conversations whose states are kept, so that the next turn only runs what is new.

A kept beginning is found by its whole token ids, never by a hash alone, and only under the same key: tenant, base,
adapter and version. How fast an answer comes thus tells nobody what others have asked. Keys and values serve any
shorter beginning too; a recurrent state only its own length. Knows caches and bytes; knows nothing of requests' text.

Legend: D width.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from app.contracts.inference import GenerateRequest
from workers.models.cache import SequenceCache

PrefixKey = tuple[str, ...]
SHORTEST = 16
"""Tokens worth keeping; almost any two prompts begin with the same few."""
TOKEN_BYTES = 4


def prefix_key(request: GenerateRequest) -> PrefixKey:
    """Return whose states the request may use: its tenant's, with the same base, adapter and version."""
    return request.tenant_id, request.base_model, *(request.adapter.key if request.adapter else ())


@dataclass(frozen=True)
class PrefixStats:
    """A snapshot. Hits, saved tokens and evictions are counts since the start; the others are what is held now."""

    hits: int
    saved_tokens: int
    evictions: int
    kept: int
    bytes: int


@dataclass(frozen=True)
class Prefix:
    """A cache of the first `length` tokens; `hidden_D` is the last one's final hidden state, where it is needed."""

    cache: SequenceCache
    length: int
    hidden_D: Tensor | None = None


class PrefixStore:
    """Keeps the most recently used beginnings within `max_bytes`; 0 keeps none."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[PrefixKey, bytes], Prefix] = OrderedDict()
        self._sorted: dict[PrefixKey, list[bytes]] = {}
        self._holders: Counter[int] = Counter()
        self._bytes = self._hits = self._saved = self._evictions = 0

    def find(self, key: PrefixKey, token_ids: Sequence[int]) -> Prefix | None:
        """Return the longest kept beginning of `token_ids`; all of it only with `hidden_D`, for a token must be run.

        The cache is still the kept one: who goes on from it takes a copy of its own with `at`.
        """
        wanted = _sortable(token_ids)
        names = self._sorted.get(key, [])
        found = self._longest_shared(key, names, wanted) or self._longest_whole(key, names, wanted)
        if found is None:
            return None
        name, length = found
        self._kept.move_to_end((key, name))
        self._hits += 1
        self._saved += length
        kept = self._kept[key, name]
        return Prefix(kept.cache, length, kept.hidden_D if length == kept.length else None)

    def keep(self, key: PrefixKey, token_ids: Sequence[int], cache: SequenceCache, hidden_D: Tensor | None) -> None:
        """Keep the cache of all `token_ids`, if it fits; what nobody used for the longest time makes room.

        `hidden_D` is the final hidden state of the last token, None where it is not known.
        """
        if not self._max_bytes or len(token_ids) < SHORTEST:
            return
        name = _sortable(token_ids)
        if self._touch(key, name, cuttable=cache.cuttable):
            return
        made = Prefix(cache.compact(), len(token_ids), None if cache.cuttable or hidden_D is None else hidden_D.clone())
        if sum(tensor.nbytes for tensor in _tensors(made)) > self._max_bytes:
            return
        names = self._sorted.setdefault(key, [])
        place = bisect_left(names, name)
        if cache.cuttable and place and name.startswith(names[place - 1]):
            self._drop(key, names[place - 1])
            place -= 1
        names = self._sorted.setdefault(key, names)
        names.insert(place, name)
        self._kept[key, name] = made
        for tensor in _tensors(made):
            self._bytes += 0 if self._holders[id(tensor)] else tensor.nbytes
            self._holders[id(tensor)] += 1
        while self._bytes > self._max_bytes:
            self._drop(*next(iter(self._kept)))
            self._evictions += 1

    def stats(self) -> PrefixStats:
        """Return a snapshot of the counters."""
        return PrefixStats(self._hits, self._saved, self._evictions, len(self._kept), self._bytes)

    def _longest_shared(self, key: PrefixKey, names: list[bytes], wanted: bytes) -> tuple[bytes, int] | None:
        """Return the cuttable beginning that shares most with `wanted`, one of its neighbours, and how much."""
        place = bisect_right(names, wanted)
        near = [name for name in names[max(0, place - 1) : place + 1] if self._kept[key, name].cache.cuttable]
        shared = [(min(_shared(name, wanted), len(wanted) // TOKEN_BYTES - 1), name) for name in near]
        length, name = max(shared, default=(0, b""))
        return (name, length) if length >= SHORTEST else None

    def _longest_whole(self, key: PrefixKey, names: list[bytes], wanted: bytes) -> tuple[bytes, int] | None:
        """Return the longest kept beginning that `wanted` begins with as a whole."""
        place = bisect_right(names, wanted)
        while place:
            name = names[place - 1]
            kept = self._kept[key, name]
            if wanted.startswith(name) and (len(name) < len(wanted) or kept.hidden_D is not None):
                return name, kept.length
            # Whatever else `wanted` begins with is a beginning of this neighbour too.
            place = bisect_right(names, wanted[: _shared(name, wanted) * TOKEN_BYTES], 0, place - 1)
        return None

    def _touch(self, key: PrefixKey, name: bytes, *, cuttable: bool) -> bool:
        """Return whether a kept beginning serves for this one, and count it as used."""
        names = self._sorted.get(key, [])
        place = bisect_left(names, name)
        held = names[place] if place < len(names) else b""
        if held != name and not (cuttable and held.startswith(name)):
            return False
        self._kept.move_to_end((key, held))
        return True

    def _drop(self, key: PrefixKey, name: bytes) -> None:
        names = self._sorted[key]
        del names[bisect_left(names, name)]
        if not names:
            del self._sorted[key]
        for tensor in _tensors(self._kept.pop((key, name))):
            self._holders[id(tensor)] -= 1
            if not self._holders[id(tensor)]:
                del self._holders[id(tensor)]
                self._bytes -= tensor.nbytes


def _tensors(kept: Prefix) -> list[Tensor]:
    return [*kept.cache.tensors(), *([] if kept.hidden_D is None else [kept.hidden_D])]


def _sortable(token_ids: Sequence[int]) -> bytes:
    """Return the ids as bytes that sort as the ids do."""
    ids = array("I", token_ids)
    if sys.byteorder == "little":
        ids.byteswap()
    return ids.tobytes()


def _shared(one: bytes, other: bytes) -> int:
    """Return with how many common tokens both begin."""
    low, high = 0, min(len(one), len(other)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * TOKEN_BYTES] == other[: middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
