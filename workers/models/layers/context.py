"""What every layer needs of a batch, made once per forward: lengths, positions, and who is adapted by what.

Knows slots as numbers. Legend: T rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from workers.models.layers.rope import Rotation


@dataclass(frozen=True)
class Route:
    """Which slots a batch uses, ascending, and each row's slot (None when one slot holds every row)."""

    slots: tuple[int, ...]
    slot_T: Tensor | None


def make_route(slots: Sequence[int], lengths: Sequence[int], device: torch.device) -> Route:
    """Return the route of sequences with these slots (-1: base only) and lengths."""
    used = tuple(sorted({slot for slot in slots if slot >= 0}))
    if not used or all(slot == used[0] for slot in slots):
        return Route(used, None)
    per_sequence = torch.tensor(slots, device=device)
    return Route(used, per_sequence.repeat_interleave(torch.tensor(lengths, device=device)))


class BatchContext(NamedTuple):
    """`route` says which low-rank terms apply to which row, `slot` whose dense tensors all rows use (-1: none).

    `lengths` are the tokens of each sequence; `rotation` is None in a model without rotary positions.
    """

    lengths: Sequence[int]
    rotation: Rotation | None
    route: Route
    slot: int
