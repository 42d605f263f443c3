"""Keys and values of one sequence. Knows tensors only.

Legend: L layers, C capacity in tokens, G key/value heads, E head width; keys then values along the 2G axis.
"""

import torch
from torch import Tensor


class SequenceCache:
    """A growing prefix of `capacity` places; `length` of them are filled."""

    def __init__(self, kv_LC2GE: Tensor, length: int = 0) -> None:
        self.kv_LC2GE = kv_LC2GE
        self.length = length

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.kv_LC2GE.shape[1]

    def clone(self) -> "SequenceCache":
        """Return an independent copy with the same capacity."""
        copy = torch.empty_like(self.kv_LC2GE)
        copy[:, : self.length] = self.kv_LC2GE[:, : self.length]
        return SequenceCache(copy, self.length)
