"""A linear map with low-rank terms added to it: y = x Wᵀ + mask(x Aᵀ) Bᵀ, with its own backward.

Knows tensors only; which adapter a row belongs to arrives as a mask. The backward keeps x and the R columns of x Aᵀ,
and computes a gradient for the weight only where one is asked for. (LoRA: Hu et al. 2021, arXiv:2106.09685.)

Legend: T rows, K inputs, N outputs, R ranks of all low-rank terms side by side.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

from workers.kernels.packed_weight import packed_linear


def _product(x_TK: Tensor, weight_NK: Tensor, packed: Tensor | None) -> Tensor:
    return linear(x_TK, weight_NK) if packed is None else packed_linear(x_TK, packed)


class _FrozenLinear(Function):
    """x Wᵀ over a packed weight; gradient to x only."""

    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, weight_NK: Tensor, packed: Tensor) -> Tensor:
        ctx.save_for_backward(weight_NK)
        return packed_linear(x_TK, packed)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (weight_NK,) = ctx.saved_tensors
        return grads[0] @ weight_NK, None, None


class _LoRALinear(Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes by position)
        ctx: Any,
        x_TK: Tensor,
        weight_NK: Tensor,
        packed: Tensor | None,
        a_RK: Tensor,
        b_NR: Tensor,
        foreign_TR: Tensor | None,
    ) -> Tensor:
        h_TR = low_rank_rows(x_TK, a_RK, foreign_TR)
        ctx.save_for_backward(x_TK, weight_NK, a_RK, b_NR, h_TR, foreign_TR)
        return _product(x_TK, weight_NK, packed).addmm_(h_TR, b_NR.T)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gy_TN,) = grads
        x_TK, weight_NK, a_RK, b_NR, h_TR, foreign_TR = ctx.saved_tensors
        need_x, need_weight, _, need_a, need_b, _ = ctx.needs_input_grad
        gx_TK = gw_NK = ga_RK = gb_NR = None
        gh_TR = gy_TN @ b_NR
        if foreign_TR is not None:
            gh_TR.masked_fill_(foreign_TR, 0)
        if need_x:
            gx_TK = (gy_TN @ weight_NK).addmm_(gh_TR, a_RK)
        if need_weight:
            gw_NK = gy_TN.T @ x_TK
        if need_a:
            ga_RK = gh_TR.T @ x_TK
        if need_b:
            gb_NR = gy_TN.T @ h_TR
        return gx_TK, gw_NK, None, ga_RK, gb_NR, None


def low_rank_rows(x_TK: Tensor, a_RK: Tensor, foreign_TR: Tensor | None) -> Tensor:
    """Return x Aᵀ with the columns that are foreign to a row set to zero, whatever was in them."""
    h_TR = linear(x_TK, a_RK)
    return h_TR if foreign_TR is None else h_TR.masked_fill_(foreign_TR, 0)


def frozen_linear(x_TK: Tensor, weight_NK: Tensor, packed: Tensor | None) -> Tensor:
    """Return x Wᵀ [T, N], through the packed copy where there is one."""
    if packed is None:
        return linear(x_TK, weight_NK)
    if torch.is_grad_enabled() and x_TK.requires_grad:
        result: Tensor = _FrozenLinear.apply(x_TK, weight_NK, packed)  # type: ignore[no-untyped-call]
        return result
    return packed_linear(x_TK, packed)


def add_low_rank_row(y_1N: Tensor, x_1K: Tensor, at_KR: Tensor, bt_RN: Tensor) -> Tensor:
    """Add x Aᵀ Bᵀ of a single row to y in place, in the factors' wider dtype. No autograd.

    At one row the CPU multiplies small float32 matrices several times faster than bfloat16 ones.
    """
    return y_1N.add_(torch.mm(torch.mm(x_1K.to(at_KR.dtype), at_KR), bt_RN))


def lora_linear(
    x_TK: Tensor, weight_NK: Tensor, packed: Tensor | None, *, a_RK: Tensor, b_NR: Tensor, foreign_TR: Tensor | None
) -> Tensor:
    """Return x Wᵀ + mask(x Aᵀ) Bᵀ [T, N]. `b_NR` carries the scale; `foreign_TR` marks what a row must not see."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x_TK, weight_NK, a_RK, b_NR)):
        result: Tensor = _LoRALinear.apply(x_TK, weight_NK, packed, a_RK, b_NR, foreign_TR)  # type: ignore[no-untyped-call]
        return result
    return _product(x_TK, weight_NK, packed).addmm_(low_rank_rows(x_TK, a_RK, foreign_TR), b_NR.T)
