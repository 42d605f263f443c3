"""Causal attention with grouped queries whose backward goes block by block of queries.

The forward is torch's own fused one. Its CPU backward is several times slower than plain products at training
lengths, so the backward here makes the probabilities of a block again and keeps none of them.

Legend: S sequences, L tokens of one, H query heads, G key/value heads, E head width, P = S·G pairs,
B rows of a block (its queries times the heads that share a key), M keys a block may see.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import scaled_dot_product_attention

BLOCK_QUERIES = 128


def fused_attention(q_SLHE: Tensor, k_SMGE: Tensor, v_SMGE: Tensor, mask_LM: Tensor | None, *, causal: bool) -> Tensor:
    """Return [S, L, H, E] by torch's fused attention; heads of k and v are repeated for the queries sharing them."""
    shared = q_SLHE.shape[2] // k_SMGE.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q_SLHE, k_SMGE, v_SMGE))
    if shared > 1:
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask_LM, is_causal=causal).transpose(1, 2)


def _future(start: int, stop: int, shared: int, like: Tensor) -> Tensor:
    """Return −inf where a query of start:stop would see a later key, repeated for the shared heads: [B, M]."""
    mask = torch.full((stop - start, stop), float("-inf"), dtype=like.dtype, device=like.device)
    return mask.triu(start + 1).repeat(shared, 1)


class _CausalAttention(Function):
    @staticmethod
    def forward(ctx: Any, q_SLHE: Tensor, k_SLGE: Tensor, v_SLGE: Tensor) -> Tensor:
        ctx.save_for_backward(q_SLHE, k_SLGE, v_SLGE)
        return fused_attention(q_SLHE, k_SLGE, v_SLGE, None, causal=True)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q_SLHE, k_SLGE, v_SLGE = ctx.saved_tensors
        sequences, length, groups, width = k_SLGE.shape
        shared, scale = q_SLHE.shape[2] // groups, width**-0.5
        wide = torch.promote_types(q_SLHE.dtype, torch.float32)
        gq_SLHE = torch.empty_like(q_SLHE)
        q_SGHLE, g_SGHLE, gq_SGHLE = (
            x.unflatten(2, (groups, shared)).permute(0, 2, 3, 1, 4) for x in (q_SLHE, grads[0], gq_SLHE)
        )
        k_PLE, v_PLE = (x.transpose(1, 2).reshape(-1, length, width) for x in (k_SLGE, v_SLGE))
        gk_PLE, gv_PLE = (torch.zeros_like(x, dtype=wide) for x in (k_PLE, v_PLE))
        for start in range(0, length, BLOCK_QUERIES):
            stop = min(start + BLOCK_QUERIES, length)
            rows = (slice(None), slice(None), slice(None), slice(start, stop))
            q_PBE, g_PBE = (x[rows].reshape(len(k_PLE), -1, width) for x in (q_SGHLE, g_SGHLE))
            k_PME, v_PME = k_PLE[:, :stop], v_PLE[:, :stop]
            future_BM = _future(start, stop, shared, q_PBE)
            p_PBM = torch.baddbmm(future_BM, q_PBE, k_PME.mT, alpha=scale).softmax(-1)
            gp_PBM = torch.bmm(g_PBE, v_PME.mT)
            gs_PBM = torch.ops.aten._softmax_backward_data(gp_PBM, p_PBM, -1, p_PBM.dtype)
            gv_PLE[:, :stop] += torch.bmm(p_PBM.mT, g_PBE)
            gk_PLE[:, :stop] += torch.bmm(gs_PBM.mT, q_PBE)
            gq_SGHLE[rows] = (torch.bmm(gs_PBM, k_PME) * scale).view_as(gq_SGHLE[rows])
        gk_SLGE, gv_SLGE = (
            x.to(k_SLGE.dtype).unflatten(0, (sequences, groups)).transpose(1, 2) for x in (gk_PLE.mul_(scale), gv_PLE)
        )
        return gq_SLHE, gk_SLGE, gv_SLGE


def causal_attention(q_SLHE: Tensor, k_SLGE: Tensor, v_SLGE: Tensor) -> Tensor:
    """Return softmax(q kᵀ / √E) v over each sequence's past, [S, L, H, E]."""
    if q_SLHE.device.type == "cpu" and torch.is_grad_enabled() and q_SLHE.requires_grad:
        result: Tensor = _CausalAttention.apply(q_SLHE, k_SLGE, v_SLGE)  # type: ignore[no-untyped-call]
        return result
    return fused_attention(q_SLHE, k_SLGE, v_SLGE, None, causal=q_SLHE.shape[1] > 1)
