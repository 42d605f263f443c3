"""A named tensor of the base, with what slots put in its place. Knows slots as numbers; not who fills them.

A slot either adds a dense delta to the base tensor or owns a tensor of its own; both may be leaves that train.
"""

import torch
from torch import Tensor


class Weight:
    """`base` is final once it is loaded. `dense_target` is the name under which a delta may be asked for, if it may.

    A narrow tensor keeps the model's dtype; a `wide` one is never narrower than float32, whatever the model's is.
    """

    __slots__ = ("base", "delta", "dense_target", "name", "own")

    def __init__(self, name: str, base: Tensor, *, dense_target: str | None = None) -> None:
        self.name = name
        self.base = base
        self.dense_target = dense_target
        self.delta: dict[int, Tensor] = {}
        self.own: dict[int, Tensor] = {}

    @property
    def shape(self) -> torch.Size:
        """Of the base tensor."""
        return self.base.shape

    def of(self, slot: int) -> Tensor:
        """Return what `slot` computes with, in the base tensor's dtype; -1 is the base alone."""
        if slot < 0:
            return self.base
        own = self.own.get(slot)
        if own is not None:
            return own.to(self.base.dtype)
        delta = self.delta.get(slot)
        return self.base if delta is None else (self.base + delta).to(self.base.dtype)

    def changed_by(self, slot: int) -> bool:
        """Whether `slot` computes with anything but the base tensor."""
        return slot in self.own or slot in self.delta

    def forget(self, slot: int) -> None:
        """Drop what `slot` put here."""
        self.delta.pop(slot, None)
        self.own.pop(slot, None)


def new_weight(
    name: str,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
    *,
    wide: bool = False,
    dense_target: str | None = None,
) -> Weight:
    """Return a weight with an uninitialised base; a wide one is at least float32."""
    dtype = torch.promote_types(dtype, torch.float32) if wide else dtype
    return Weight(name, torch.empty(shape, device=device, dtype=dtype), dense_target=dense_target)
