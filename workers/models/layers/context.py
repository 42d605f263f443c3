"""What every layer needs of a batch, made once per forward: lengths, positions, and which rows use which slot.

Knows slots as numbers. Legend: T rows, C channels, P places of a stack, M rows of a place.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from workers.models.layers.places import Places, StackedRows
from workers.models.layers.rope import Rotation
from workers.models.weight import Weight


class Segment(NamedTuple):
    """Neighbouring sequences that compute with the same slot (-1: with the base alone)."""

    slot: int
    rows: slice
    sequences: slice

    @property
    def row_count(self) -> int:
        """Rows of all its sequences."""
        return int(self.rows.stop - self.rows.start)


@dataclass(frozen=True)
class BatchContext:
    """`segments` cover all rows in order. Of the slots among them, those in `dense` have dense tensors of their own.

    `stacked` are the rows whose low-rank terms are multiplied together, place by place, and `adapted` the segments
    whose terms are not among those. `lengths` are the tokens of each sequence; `rotation` is None in a model without
    rotary positions.
    """

    lengths: Sequence[int]
    rotation: Rotation | None
    segments: tuple[Segment, ...]
    dense: frozenset[int]
    adapted: tuple[Segment, ...]
    stacked: StackedRows | None

    def parts(self, weights: Sequence[Weight]) -> Sequence[Segment]:
        """Return segments as coarse as these weights allow; their slot is -1 where no weight differs from the base."""
        whole = Segment(-1, slice(0, self.segments[-1].rows.stop), slice(0, len(self.lengths)))
        if not self.dense:
            return (whole,)

        def whose(segment: Segment) -> int:
            slot = segment.slot
            return slot if slot in self.dense and any(weight.changed_by(slot) for weight in weights) else -1

        parts = []
        for slot, group in groupby(self.segments, whose):
            same = list(group)
            rows = slice(same[0].rows.start, same[-1].rows.stop)
            parts.append(Segment(slot, rows, slice(same[0].sequences.start, same[-1].sequences.stop)))
        return parts

    def by_part(self, weights: Sequence[Weight], x_TC: Tensor, compute: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Return `compute(rows, slot)` of every part of the rows, end to end; rows go in one part where they can."""
        if not self.dense:
            return compute(x_TC, -1)
        parts = self.parts(weights)
        if len(parts) == 1:
            return compute(x_TC, parts[0].slot)
        return torch.cat([compute(x_TC[part.rows], part.slot) for part in parts])


def make_segments(slots: Sequence[int], lengths: Sequence[int]) -> tuple[Segment, ...]:
    """Return the segments of sequences with these slots and lengths."""
    segments, row, sequence = [], 0, 0
    for slot, group in groupby(zip(slots, lengths, strict=True), lambda pair: pair[0]):
        theirs = [length for _, length in group]
        rows = slice(row, row + sum(theirs))
        segments.append(Segment(slot, rows, slice(sequence, sequence + len(theirs))))
        row, sequence = rows.stop, sequence + len(theirs)
    return tuple(segments)


def make_context(
    slots: Sequence[int],
    lengths: Sequence[int],
    rotation: Rotation | None,
    *,
    dense: Collection[int],
    places: Places | None,
) -> BatchContext:
    """Return the context of sequences with these slots (-1: base only) and lengths.

    `dense` are all slots that have dense tensors of their own; `places` is None where no terms may be stacked.
    """
    segments = make_segments(slots, lengths)
    adapted = tuple(segment for segment in segments if segment.slot >= 0)
    stacked = None
    if places is not None and adapted:
        stacked = places.stack([(segment.slot, segment.rows) for segment in adapted])
        adapted = tuple(segment for segment in adapted if stacked is None or segment.slot not in stacked.slots)
    used = {segment.slot for segment in segments}
    return BatchContext(lengths, rotation, segments, frozenset(used.intersection(dense)), adapted, stacked)
