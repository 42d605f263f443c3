"""Frozen matrices held in fewer bits: float16, int8 with a scale a row, nf4 (Dettmers et al. 2023, arXiv:2305.14314).

The number formats int8 and nf4 are the bitsandbytes library's. Knows matrices, not what they mean. A product makes the
dense matrix for itself and drops it; the backward makes it again.

Legend: T rows, N outputs, K inputs.
"""

from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

Kind = Literal["fp16", "int8", "nf4"]
KINDS: tuple[Kind, ...] = ("fp16", "int8", "nf4")
NF4_BLOCK = 64


class QuantizedMatrix(Protocol):
    """A matrix [N, K] that can be made dense; `nbytes` is what it takes, constants included."""

    shape: torch.Size
    nbytes: int

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix [N, K]."""
        ...


class HalfMatrix:
    """float16."""

    def __init__(self, weight_NK: Tensor) -> None:
        self._half_NK = weight_NK.to(torch.float16)
        if not bool(self._half_NK.isfinite().all()):
            raise ValueError("a value is too large for float16")
        self.shape, self.nbytes = weight_NK.shape, self._half_NK.nbytes

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix [N, K]."""
        return self._half_NK.to(dtype)


class Int8Matrix:
    """Symmetric int8: a row's largest magnitude is 127."""

    def __init__(self, weight_NK: Tensor) -> None:
        from bitsandbytes.functional import int8_vectorwise_quant

        half_NK = weight_NK.to(torch.float16)
        if not bool(half_NK.isfinite().all()):
            raise ValueError("a value is too large for the library's int8, which goes through float16")
        self._codes_NK, self._largest_N, _ = int8_vectorwise_quant(half_NK)
        self.shape, self.nbytes = weight_NK.shape, self._codes_NK.nbytes + self._largest_N.nbytes

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix [N, K]."""
        scale_N1 = (self._largest_N / 127)[:, None]
        dense_NK: Tensor = (self._codes_NK * scale_N1).to(dtype)
        return dense_NK


class Nf4Matrix:
    """Four bits a value, one of sixteen quantiles of a normal; blocks of 64 share a scale, itself held in 8 bits."""

    def __init__(self, weight_NK: Tensor) -> None:
        from bitsandbytes.functional import quantize_4bit

        self._codes, self._state = quantize_4bit(
            weight_NK.float().contiguous(), blocksize=NF4_BLOCK, compress_statistics=True, quant_type="nf4"
        )
        self.shape = weight_NK.shape
        # The table of the scales' own 8 bits is the library's, one for all matrices.
        self.nbytes = self._codes.nbytes + self._state.absmax.nbytes + self._state.state2.absmax.nbytes

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix [N, K]."""
        from bitsandbytes.functional import dequantize_4bit

        dense_NK: Tensor = dequantize_4bit(self._codes, self._state).view(self.shape).to(dtype)
        return dense_NK


_CLASSES: dict[Kind, type[HalfMatrix] | type[Int8Matrix] | type[Nf4Matrix]] = {
    "fp16": HalfMatrix,
    "int8": Int8Matrix,
    "nf4": Nf4Matrix,
}


def quantize(weight_NK: Tensor, kind: Kind) -> QuantizedMatrix:
    """Return the matrix in fewer bits. Raises ValueError for a value that is not finite or too large for the format."""
    if not bool(weight_NK.isfinite().all()):
        raise ValueError("a value is not finite")
    return _CLASSES[kind](weight_NK.detach())


class _QuantizedLinear(Function):
    """x Wᵀ; gradient to x only."""

    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, weight: QuantizedMatrix) -> Tensor:
        ctx.weight = weight
        return linear(x_TK, weight.dense(x_TK.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] @ ctx.weight.dense(grads[0].dtype), None


def quantized_linear(x_TK: Tensor, weight: QuantizedMatrix) -> Tensor:
    """Return x Wᵀ [T, N] in the dtype of x, with the gradient to x."""
    result: Tensor = _QuantizedLinear.apply(x_TK, weight)  # type: ignore[no-untyped-call]
    return result
