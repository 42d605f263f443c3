"""Places of stacked low-rank factors: which slot's factors lie where, the same in every module of a model.

Decoding has a row or two of each of many slots. Factors that lie stacked multiply them all at once; a slot keeps its
place while it is used, so that a batch that changes copies only what is new in it. Knows slots as numbers.

Legend: P places, M rows of a place, T rows of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_PLACES = 32
"""Slots beyond are multiplied one by one; a stack takes memory for each place, of the size of the greatest rank."""
MAX_ROWS = 4
"""More rows of one slot than these are a product of their own."""
SPARSE = 4
"""Where less than a quarter of the places is used, a product for each is cheaper than one for all."""


@dataclass(frozen=True)
class StackedRows:
    """Rows of a batch that are multiplied by stacked factors.

    `places` are the (place, slot) pairs in use and `count` all places. Either `spans` are the rows of each pair, to be
    multiplied one by one; or `gather_PM` says for every place which M rows it is given (any row where it has none),
    `rows_R` which rows of the batch are to be changed and `from_R` where of P · M their results lie.
    """

    slots: frozenset[int]
    places: Sequence[tuple[int, int]]
    count: int
    spans: Sequence[slice] | None
    gather_PM: Tensor
    rows_R: Tensor
    from_R: Tensor


class Places:
    """The slots that have places. `trained` are slots whose factors change in place and are never stacked."""

    def __init__(self, device: torch.device) -> None:
        self.trained: set[int] = set()
        self._device = device
        self._slots: list[int] = []
        self._used: dict[int, int] = {}
        self._clock = 0

    def stack(self, adapted: Sequence[tuple[int, slice]]) -> StackedRows | None:
        """Return how the rows of these slots are multiplied together; None when none of them may be.

        Slots with many rows, with rows apart from each other, or with no place left stay out.
        """
        counts: dict[int, int] = {}
        for slot, _ in adapted:
            counts[slot] = counts.get(slot, 0) + 1
        small = {
            slot: rows
            for slot, rows in adapted
            if counts[slot] == 1 and rows.stop - rows.start <= MAX_ROWS and slot not in self.trained
        }
        placed = self._place(list(small))
        if not placed:
            return None
        pairs = sorted((place, slot) for slot, place in placed.items())
        spans = [small[slot] for _, slot in pairs]
        if len(pairs) * SPARSE <= len(self._slots) or len(pairs) == 1:
            empty = torch.empty(0, dtype=torch.long)
            return StackedRows(frozenset(placed), pairs, len(self._slots), spans, empty, empty, empty)
        most = max(span.stop - span.start for span in spans)
        gather = [0] * (len(self._slots) * most)
        rows, sources = [], []
        for (place, _), span in zip(pairs, spans, strict=True):
            for m, row in enumerate(range(span.start, span.stop)):
                gather[place * most + m] = row
                rows.append(row)
                sources.append(place * most + m)
        gather_PM, rows_R, from_R = (torch.tensor(x, device=self._device) for x in (gather, rows, sources))
        return StackedRows(frozenset(placed), pairs, len(self._slots), None, gather_PM, rows_R, from_R)

    def _place(self, slots: Sequence[int]) -> dict[int, int]:
        self._clock += 1
        placed = {slot: place for place, slot in enumerate(self._slots) if slot in slots}
        for slot in slots:
            if slot not in placed:
                place = self._free_place(set(placed.values()))
                if place is None:
                    continue
                self._slots[place] = slot
                placed[slot] = place
            self._used[placed[slot]] = self._clock
        return placed

    def _free_place(self, taken: set[int]) -> int | None:
        """Return the place that was not used for longest; a new one while those in use are all taken."""
        free = [place for place in range(len(self._slots)) if place not in taken]
        if free:
            return min(free, key=lambda place: self._used.get(place, 0))
        if len(self._slots) == MAX_PLACES:
            return None
        self._slots.append(-1)
        return len(self._slots) - 1
