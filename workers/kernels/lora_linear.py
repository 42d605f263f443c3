"""A frozen linear map with low-rank terms on some of its rows and outputs: y = x Wᵀ + s · (x Aᵀ) Bᵀ, with backward.

Knows tensors only. Every term comes with the rows that it is for and the outputs that it adds to, and touches no
others: one product with W serves the rows of all adapters, and a value that is not finite stays in its own rows. The
backward keeps x and each term's x Aᵀ. (LoRA: Hu et al. 2021, arXiv:2106.09685.)

Legend: T rows, S rows of a term, K inputs, N outputs, M outputs of a term, R rank.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

from workers.kernels.packed_weight import packed_linear


class _FrozenLinear(Function):
    """x Wᵀ over a packed weight; gradient to x only."""

    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, weight_NK: Tensor, packed: Tensor) -> Tensor:
        ctx.save_for_backward(weight_NK)
        return packed_linear(x_TK, weight_NK, packed)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (weight_NK,) = ctx.saved_tensors
        return grads[0] @ weight_NK, None, None


class Term(NamedTuple):
    """A low-rank term: which rows it is for, and which outputs it adds scale · (x Aᵀ) Bᵀ to."""

    rows: slice
    outputs: slice
    a_RK: Tensor
    b_MR: Tensor
    scale: float


class _Place(NamedTuple):
    """A term without its tensors."""

    rows: slice
    outputs: slice
    scale: float


class _LoRALinear(Function):
    """Without a weight there are the terms alone."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes by position)
        ctx: Any,
        x_TK: Tensor,
        weight_NK: Tensor | None,
        packed: Tensor | None,
        outputs: int,
        places: Sequence[_Place],
        *factors: Tensor,
    ) -> Tensor:
        y_TN = x_TK.new_zeros(len(x_TK), outputs) if weight_NK is None else packed_linear(x_TK, weight_NK, packed)
        kept = []
        for place, a_RK, b_MR in zip(places, factors[::2], factors[1::2], strict=True):
            narrow_a_RK, narrow_b_MR = a_RK.to(x_TK.dtype), b_MR.to(x_TK.dtype)
            h_SR = linear(x_TK[place.rows], narrow_a_RK)
            y_TN[place.rows, place.outputs].addmm_(h_SR, narrow_b_MR.T, alpha=place.scale)
            kept += [narrow_a_RK, narrow_b_MR, h_SR]
        ctx.save_for_backward(x_TK, weight_NK, *kept)
        ctx.places = places
        return y_TN

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gy_TN,) = grads
        x_TK, weight_NK, *kept = ctx.saved_tensors
        gx_TK = None
        if ctx.needs_input_grad[0]:
            gx_TK = torch.zeros_like(x_TK) if weight_NK is None else gy_TN @ weight_NK
        wanted = ctx.needs_input_grad[5:]
        factor_grads: list[Tensor | None] = []
        for i, place in enumerate(ctx.places):
            a_RK, b_MR, h_SR = kept[3 * i : 3 * i + 3]
            gy_SM = gy_TN[place.rows, place.outputs]
            gh_SR = (gy_SM @ b_MR).mul_(place.scale)
            if gx_TK is not None:
                gx_TK[place.rows].addmm_(gh_SR, a_RK)
            factor_grads += [
                gh_SR.T @ x_TK[place.rows] if wanted[2 * i] else None,
                (gy_SM.T @ h_SR).mul_(place.scale) if wanted[2 * i + 1] else None,
            ]
        return gx_TK, None, None, None, None, *factor_grads


def frozen_linear(x_TK: Tensor, weight_NK: Tensor, packed: Tensor | None) -> Tensor:
    """Return x Wᵀ [T, N], through the packed copy where there is one."""
    if packed is None:
        return linear(x_TK, weight_NK)
    if torch.is_grad_enabled() and x_TK.requires_grad:
        result: Tensor = _FrozenLinear.apply(x_TK, weight_NK, packed)  # type: ignore[no-untyped-call]
        return result
    return packed_linear(x_TK, weight_NK, packed)


def lora_linear(x_TK: Tensor, weight_NK: Tensor, packed: Tensor | None, terms: Sequence[Term]) -> Tensor:
    """Return x Wᵀ plus the terms [T, N]; gradients go to x and to the factors, none to the frozen weight.

    Factors may be of a wider dtype than x; they are multiplied in that of x.
    """
    return _apply(x_TK, weight_NK, packed, len(weight_NK), terms)


def lora_terms(x_TK: Tensor, outputs: int, terms: Sequence[Term]) -> Tensor:
    """Return the terms alone [T, N] for N `outputs`, zero where there is none; gradients as in `lora_linear`."""
    return _apply(x_TK, None, None, outputs, terms)


def _apply(
    x_TK: Tensor, weight_NK: Tensor | None, packed: Tensor | None, outputs: int, terms: Sequence[Term]
) -> Tensor:
    places = [_Place(term.rows, term.outputs, term.scale) for term in terms]
    factors = [factor for term in terms for factor in (term.a_RK, term.b_MR)]
    result: Tensor = _LoRALinear.apply(x_TK, weight_NK, packed, outputs, places, *factors)  # type: ignore[no-untyped-call]
    return result
