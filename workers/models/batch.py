"""Packed batches: sequences laid end to end, without padding. Knows token ids, positions and slot numbers only.

Legend: T tokens of the whole batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class PackedBatch:
    """Sequence s is rows cu_seqlens[s]:cu_seqlens[s+1]; `slots[s]` is its adapter, -1 for the base alone."""

    token_ids_T: Tensor
    positions_T: Tensor
    cu_seqlens: list[int]
    slots: list[int]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence."""
        return [stop - start for start, stop in pairwise(self.cu_seqlens)]


def pack(
    sequences: Sequence[Sequence[int]],
    slots: Sequence[int],
    device: torch.device | str,
    starts: Sequence[int] | None = None,
) -> PackedBatch:
    """Lay sequences end to end. `starts` is the position of each sequence's first token (0 when absent)."""
    if len(slots) != len(sequences):
        raise ValueError(f"{len(sequences)} sequences need as many slots, got {len(slots)}")
    if not sequences or not all(sequences):
        raise ValueError("a packed batch needs at least one sequence and no empty one")
    starts = starts or [0] * len(sequences)
    ids = [token for sequence in sequences for token in sequence]
    positions = [p for start, s in zip(starts, sequences, strict=True) for p in range(start, start + len(s))]
    return PackedBatch(
        token_ids_T=torch.tensor(ids, dtype=torch.long, device=device),
        positions_T=torch.tensor(positions, dtype=torch.long, device=device),
        cu_seqlens=list(accumulate((len(s) for s in sequences), initial=0)),
        slots=list(slots),
    )
