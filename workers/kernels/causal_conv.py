"""Depthwise causal convolution over time, with an optional SiLU, continuing from the inputs before it.

Knows tensors only. Legend: S sequences, L tokens of one, C channels, W taps of a channel, P = L + W − 1 inputs that the
L outputs see, the earliest W − 1 of them from before (the state: zeros at a sequence's start).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import silu


def _convolve(x_SPC: Tensor, weight_CW: Tensor, bias_C: Tensor | None) -> Tensor:
    """Return Σ_k weight[:, k] · x[t + k], in the wider of both dtypes."""
    width = weight_CW.shape[1]
    length = x_SPC.shape[1] - width + 1
    y_SLC = x_SPC[:, :length] * weight_CW[:, 0]
    if bias_C is not None:
        y_SLC = y_SLC.add_(bias_C)
    for k in range(1, width):
        y_SLC.addcmul_(x_SPC[:, k : k + length].to(y_SLC.dtype), weight_CW[:, k])
    return y_SLC


class _CausalConv(Function):
    """Keeps the inputs only; what comes before the SiLU is computed again in the backward."""

    @staticmethod
    def forward(ctx: Any, x_SPC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, activate: bool) -> Tensor:
        ctx.save_for_backward(x_SPC, weight_CW, bias_C)
        ctx.activate = activate
        y_SLC = _convolve(x_SPC, weight_CW, bias_C)
        return (silu(y_SLC) if activate else y_SLC).to(x_SPC.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x_SPC, weight_CW, bias_C = ctx.saved_tensors
        width, length = weight_CW.shape[1], grads[0].shape[1]
        g_SLC = grads[0].to(weight_CW.dtype)
        if ctx.activate:
            g_SLC = torch.ops.aten.silu_backward(g_SLC, _convolve(x_SPC, weight_CW, bias_C))
        gx_SPC = gw_CW = gb_C = None
        if ctx.needs_input_grad[0]:
            gx_SPC = torch.zeros(x_SPC.shape, dtype=g_SLC.dtype, device=g_SLC.device)
            for k in range(width):
                gx_SPC[:, k : k + length].addcmul_(g_SLC, weight_CW[:, k])
            gx_SPC = gx_SPC.to(x_SPC.dtype)
        if ctx.needs_input_grad[1]:
            gw_CW = torch.stack([(g_SLC * x_SPC[:, k : k + length]).sum((0, 1)) for k in range(width)], dim=-1)
        if bias_C is not None and ctx.needs_input_grad[2]:
            gb_C = g_SLC.sum((0, 1))
        return gx_SPC, gw_CW, gb_C, None


def reference_causal_conv(
    x_SLC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, state_SWC: Tensor, *, activate: bool
) -> tuple[Tensor, Tensor]:
    """The same as `causal_conv`, one token after the other."""
    outputs = []
    for x_SC in x_SLC.unbind(1):
        seen_SWC = torch.cat([state_SWC, x_SC[:, None]], dim=1)
        y_SC = (seen_SWC * weight_CW.T).sum(1)
        y_SC = y_SC if bias_C is None else y_SC + bias_C
        outputs.append((silu(y_SC) if activate else y_SC).to(x_SLC.dtype))
        state_SWC = seen_SWC[:, 1:]
    return torch.stack(outputs, dim=1), state_SWC


def causal_conv(
    x_SLC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, state_SWC: Tensor | None, *, activate: bool
) -> tuple[Tensor, Tensor]:
    """Return act(Σ_k weight[:, k] · x[t − W + 1 + k] + bias) [S, L, C] in the dtype of x, and the state after it.

    A state [S, W − 1, C] holds the inputs before `x_SLC`, latest last; None stands for zeros.
    """
    before = weight_CW.shape[1] - 1
    if state_SWC is None:
        state_SWC = x_SLC.new_zeros(x_SLC.shape[0], before, x_SLC.shape[2])
    x_SPC = torch.cat([state_SWC, x_SLC], dim=1)
    after_SWC = x_SPC[:, x_SPC.shape[1] - before :]
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x_SPC, weight_CW, bias_C)):
        y_SLC: Tensor = _CausalConv.apply(x_SPC, weight_CW, bias_C, activate)  # type: ignore[no-untyped-call]
        return y_SLC, after_SWC
    y_SLC = _convolve(x_SPC, weight_CW, bias_C)
    return (silu(y_SLC, inplace=True) if activate else y_SLC).to(x_SLC.dtype), after_SWC
