"""Mamba-2's gated RMSNorm: the gate is applied first, then each group of channels is normed by itself.

Knows tensors only. Legend: T rows, D width, G groups, E = D / G.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import silu


def _units(x_TD: Tensor, gate_TD: Tensor, eps: float, groups: int) -> tuple[Tensor, Tensor]:
    """Return x · silu(gate), scaled to a root mean square of 1 in each group [T, G, E], and the scales [T, G, 1]."""
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    gated_TGE = (silu(gate_TD.to(wide)) * x_TD).unflatten(-1, (groups, -1))
    scale_TG1 = torch.rsqrt(gated_TGE.square().mean(-1, keepdim=True) + eps)
    return gated_TGE * scale_TG1, scale_TG1


def _normed(x_TD: Tensor, gate_TD: Tensor, weight_D: Tensor, eps: float, groups: int) -> Tensor:
    return (_units(x_TD, gate_TD, eps, groups)[0].flatten(-2) * weight_D).to(x_TD.dtype)


class _GatedNorm(Function):
    """Keeps x and gate only."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes by position)
        ctx: Any, x_TD: Tensor, gate_TD: Tensor, weight_D: Tensor, eps: float, groups: int
    ) -> Tensor:
        ctx.save_for_backward(x_TD, gate_TD, weight_D)
        ctx.eps, ctx.groups = eps, groups
        return _normed(x_TD, gate_TD, weight_D, eps, groups)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x_TD, gate_TD, weight_D = ctx.saved_tensors
        unit_TGE, scale_TG1 = _units(x_TD, gate_TD, ctx.eps, ctx.groups)
        gy_TD, gate_wide_TD = grads[0].to(unit_TGE.dtype), gate_TD.to(unit_TGE.dtype)
        g_weight = (gy_TD * unit_TGE.flatten(-2)).sum(0).to(weight_D.dtype) if ctx.needs_input_grad[2] else None
        g_unit_TGE = (gy_TD * weight_D).unflatten(-1, (ctx.groups, -1))
        along_TG1 = (g_unit_TGE * unit_TGE).mean(-1, keepdim=True)
        g_gated_TD = torch.addcmul(g_unit_TGE, unit_TGE, along_TG1, value=-1).mul_(scale_TG1).flatten(-2)
        g_x = (g_gated_TD * silu(gate_wide_TD)).to(x_TD.dtype)
        g_gate = torch.ops.aten.silu_backward(g_gated_TD * x_TD, gate_wide_TD).to(gate_TD.dtype)
        return g_x, g_gate, g_weight, None, None


def gated_norm(x_TD: Tensor, gate_TD: Tensor, weight_D: Tensor, eps: float, groups: int = 1) -> Tensor:
    """Return rms_norm(x · silu(gate)) · weight [T, D] in the dtype of x, over each of `groups` equal parts of D."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x_TD, gate_TD, weight_D)):
        result: Tensor = _GatedNorm.apply(x_TD, gate_TD, weight_D, eps, groups)  # type: ignore[no-untyped-call]
        return result
    return _normed(x_TD, gate_TD, weight_D, eps, groups)
