"""SwiGLU: silu(gate) · up over one fused gate|up tensor (Shazeer 2020, arXiv:2002.05202).

Knows tensors only. Legend: T rows, F hidden width of the MLP.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import silu


class _SwiGLU(Function):
    """Keeps gate|up only; silu(gate) is computed again in the backward."""

    @staticmethod
    def forward(ctx: Any, gate_up_T2F: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up_T2F)
        gate_TF, up_TF = gate_up_T2F.chunk(2, dim=-1)
        return silu(gate_TF).mul_(up_TF)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gy_TF,) = grads
        (gate_up_T2F,) = ctx.saved_tensors
        gate_TF, up_TF = gate_up_T2F.chunk(2, dim=-1)
        grad_T2F = torch.empty_like(gate_up_T2F)
        g_gate_TF, g_up_TF = grad_T2F.chunk(2, dim=-1)
        torch.mul(gy_TF, silu(gate_TF), out=g_up_TF)
        g_gate_TF.copy_(torch.ops.aten.silu_backward(gy_TF * up_TF, gate_TF))
        return grad_T2F


def swiglu(gate_up_T2F: Tensor) -> Tensor:
    """Return silu(gate) · up [T, F] of gate|up [T, 2F]."""
    if torch.is_grad_enabled() and gate_up_T2F.requires_grad:
        result: Tensor = _SwiGLU.apply(gate_up_T2F)  # type: ignore[no-untyped-call]
        return result
    gate_TF, up_TF = gate_up_T2F.chunk(2, dim=-1)
    return silu(gate_TF).mul_(up_TF)
