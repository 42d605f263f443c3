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
"""Slots beyond are multiplied one by one."""
MAX_RANK = 32
"""All places take the memory of the greatest rank; products of a greater one than this are worth going alone."""
MAX_ROWS = 4
"""More rows of one slot than these are a product of their own."""
SPARSE = 4
"""Where less than a quarter of the places is used, a product for each is cheaper than one for all."""


@dataclass(frozen=True)
class StackedRows:
    """Rows of a batch that are multiplied by stacked factors.

    `places` are the (place, slot) pairs in use and `spans` their rows, to be multiplied one by one where `exchange` is
    None.
    """

    slots: frozenset[int]
    places: Sequence[tuple[int, int]]
    spans: Sequence[slice]
    exchange: "Exchange | None"


@dataclass(frozen=True)
class Exchange:
    """How rows of the batch go to all places at once, M to each, and back.

    `gather_PM` says which row each place is given (any where it has none) and `back_R` where of P · M the rows that
    change have their results, in order; None: rows lie as the places do. `spans` are these rows of the batch.
    """

    count: int
    gather_PM: Tensor | None
    back_R: Tensor | None
    spans: Sequence[slice]


class Places:
    """The slots that have places. Those in `apart` never have one: their factors change in place or are too large."""

    def __init__(self, device: torch.device) -> None:
        self.apart: set[int] = set()
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
            if counts[slot] == 1 and rows.stop - rows.start <= MAX_ROWS and slot not in self.apart
        }
        placed = self._place(list(small))
        if not placed:
            return None
        pairs = sorted((place, slot) for slot, place in placed.items())
        spans = [small[slot] for _, slot in pairs]
        alone = len(pairs) == 1 or len(pairs) * SPARSE <= len(self._slots)
        exchange = None if alone else self._exchange([place for place, _ in pairs], spans)
        return StackedRows(frozenset(placed), pairs, spans, exchange)

    def _exchange(self, places: Sequence[int], spans: Sequence[slice]) -> Exchange:
        most = max(span.stop - span.start for span in spans)
        gather = [0] * (len(self._slots) * most)
        came_from = {}
        for place, span in zip(places, spans, strict=True):
            for position, row in enumerate(range(span.start, span.stop), start=place * most):
                gather[position] = row
                came_from[row] = position
        rows = sorted(came_from)
        back = [came_from[row] for row in rows]
        spans = _spans(rows)
        as_they_lie = len(spans) == 1 and gather == rows
        return Exchange(
            len(self._slots),
            None if as_they_lie else torch.tensor(gather, device=self._device),
            None if as_they_lie else torch.tensor(back, device=self._device),
            spans,
        )

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


def _spans(rows: Sequence[int]) -> list[slice]:
    """Return ascending rows as slices."""
    spans: list[slice] = []
    for row in rows:
        if spans and spans[-1].stop == row:
            spans[-1] = slice(spans[-1].start, row + 1)
        else:
            spans.append(slice(row, row + 1))
    return spans
