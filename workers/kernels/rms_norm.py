"""RMSNorm with its statistics in at least float32 (Zhang and Sennrich 2019, arXiv:1910.07467).

Knows tensors only. Legend: T rows, D width.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import rms_norm as torch_rms_norm


class _RMSNorm(Function):
    """Keeps the input only; everything else is rebuilt in the backward."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x_TD, weight_D)
        ctx.eps = eps
        return torch_rms_norm(x_TD, weight_D.shape, weight_D, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x_TD, weight_D = ctx.saved_tensors
        need_x, need_weight, _ = ctx.needs_input_grad
        wide_TD = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32))
        rstd_T1 = torch.rsqrt(wide_TD.square().mean(-1, keepdim=True) + ctx.eps)
        gy_TD = grads[0].to(rstd_T1.dtype)
        unit_TD = wide_TD * rstd_T1
        gx_TD = gw_D = None
        if need_weight:
            gw_D = (gy_TD * unit_TD).sum(0).to(weight_D.dtype)
        if need_x:
            g_TD = gy_TD * weight_D
            along_T1 = (g_TD * unit_TD).mean(-1, keepdim=True)
            gx_TD = torch.addcmul(g_TD, unit_TD, along_T1, value=-1).mul_(rstd_T1).to(x_TD.dtype)
        return gx_TD, gw_D, None


def _rms_norm_row(x_1D: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """The norm of a single row in three small operations; torch's own takes seven, which a decoded token feels."""
    wide = torch.promote_types(x_1D.dtype, torch.float32)
    norm = torch.linalg.vector_norm(x_1D, dtype=wide).item()
    # A product with one rounding, also in bfloat16.
    return torch.addcmul(torch.zeros_like(x_1D), x_1D, weight_D, value=1 / math.sqrt(norm * norm / x_1D.numel() + eps))


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x²) + eps) · weight, in the dtype of x."""
    if torch.is_grad_enabled() and (x_TD.requires_grad or weight_D.requires_grad):
        result: Tensor = _RMSNorm.apply(x_TD, weight_D, eps)  # type: ignore[no-untyped-call]
        return result
    if x_TD.shape[0] == 1 and x_TD.is_cpu:
        return _rms_norm_row(x_TD, weight_D, eps)
    return torch_rms_norm(x_TD, weight_D.shape, weight_D, eps)
