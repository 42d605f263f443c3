"""A named tensor of the base, with what slots put in its place. Knows slots as numbers; not who fills them.

A slot either adds a dense delta to the base tensor or owns a tensor of its own; both may be leaves that train.
"""

import torch
from torch import Tensor

from workers.kernels.quantized_weight import QuantizedMatrix


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

    @property
    def dtype(self) -> torch.dtype:
        """Of the base tensor."""
        return self.base.dtype

    @property
    def nbytes(self) -> int:
        """What the base tensor takes in memory."""
        return self.base.nbytes

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


class QuantizedRows(Weight):
    """Some rows of a quantised matrix; `base` is made anew each time it is asked for."""

    __slots__ = ("_dtype", "_matrix", "_rows")

    def __init__(self, name: str, matrix: QuantizedMatrix, rows: slice, dtype: torch.dtype) -> None:
        self.name, self.dense_target = name, None
        self._matrix, self._rows, self._dtype = matrix, rows, dtype
        self.delta, self.own = {}, {}

    @property
    def base(self) -> Tensor:  # type: ignore[override]
        """The dense rows, in the model's dtype."""
        return self._matrix.dense(self._dtype)[self._rows]

    @property
    def shape(self) -> torch.Size:
        """Of the rows."""
        return torch.Size((self._rows.stop - self._rows.start, self._matrix.shape[1]))

    @property
    def dtype(self) -> torch.dtype:
        """The model's, in which the rows are computed with."""
        return self._dtype

    @property
    def nbytes(self) -> int:
        """The rows' share of what the matrix takes."""
        return self._matrix.nbytes * self.shape[0] // self._matrix.shape[0]


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
