"""Causal attention with grouped queries: torch's fused one, and one for training that goes by blocks of queries.

On the CPU, plain products are several times faster than the fused backward at training lengths. A block's
probabilities are made again in the backward and none are kept, so memory grows with the length, not its square.

Legend: S sequences, L tokens of one, H query heads, G key/value heads, E head width, P = S·G pairs,
B rows of a block (its queries times the heads that share a key), M keys a block may see.
A window is how many of the latest tokens, itself among them, a token sees.
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


class _Blocks:
    """The tensors of one call in pairs of (sequence, key head), and the probabilities of a block of queries."""

    def __init__(self, q_SLHE: Tensor, k_SLGE: Tensor, v_SLGE: Tensor, window: int) -> None:
        self.window = window
        self.sequences, self.length, self.groups, self.width = k_SLGE.shape
        self.shared = q_SLHE.shape[2] // self.groups
        self.scale = self.width**-0.5
        self.q_SGHLE = self.by_group(q_SLHE)
        self.k_PLE, self.v_PLE = (x.transpose(1, 2).reshape(-1, self.length, self.width) for x in (k_SLGE, v_SLGE))

    def by_group(self, x_SLHE: Tensor) -> Tensor:
        """View the query heads as [S, G, shared, L, E]."""
        x_SGHLE: Tensor = x_SLHE.unflatten(2, (self.groups, self.shared)).permute(0, 2, 3, 1, 4)
        return x_SGHLE

    def spans(self) -> list[tuple[int, int, slice]]:
        """First and last query of each block, and the keys that it sees."""
        blocks = [(start, min(start + BLOCK_QUERIES, self.length)) for start in range(0, self.length, BLOCK_QUERIES)]
        return [(start, stop, slice(max(0, start - self.window + 1), stop)) for start, stop in blocks]

    def rows(self, x_SGHLE: Tensor, start: int, stop: int) -> Tensor:
        """Return a block's queries [P, B, E]."""
        return x_SGHLE[:, :, :, start:stop].reshape(len(self.k_PLE), -1, self.width)

    def probabilities(self, q_PBE: Tensor, start: int, keys: slice) -> Tensor:
        """Return softmax over the keys that each query sees [P, B, M]."""
        own = start - keys.start
        hidden = q_PBE.new_full((keys.stop - start, keys.stop - keys.start), float("-inf"))
        mask_BM = hidden.triu(own + 1)
        if self.window < self.length:
            mask_BM += hidden.tril(own - self.window)
        mask_BM = mask_BM.repeat(self.shared, 1)
        return torch.baddbmm(mask_BM, q_PBE, self.k_PLE[:, keys].mT, alpha=self.scale).softmax(-1)


class _CausalAttention(Function):
    @staticmethod
    def forward(ctx: Any, q_SLHE: Tensor, k_SLGE: Tensor, v_SLGE: Tensor, window: int) -> Tensor:
        ctx.save_for_backward(q_SLHE, k_SLGE, v_SLGE)
        ctx.window = window
        blocks = _Blocks(q_SLHE, k_SLGE, v_SLGE, window)
        out_SLHE = torch.empty(q_SLHE.shape, dtype=q_SLHE.dtype, device=q_SLHE.device)
        out_SGHLE = blocks.by_group(out_SLHE)
        for start, stop, keys in blocks.spans():
            p_PBM = blocks.probabilities(blocks.rows(blocks.q_SGHLE, start, stop), start, keys)
            place = out_SGHLE[:, :, :, start:stop]
            place.copy_(torch.bmm(p_PBM, blocks.v_PLE[:, keys]).view(place.shape))
        return out_SLHE

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q_SLHE, k_SLGE, v_SLGE = ctx.saved_tensors
        blocks = _Blocks(q_SLHE, k_SLGE, v_SLGE, ctx.window)
        gq_SLHE = torch.empty(q_SLHE.shape, dtype=q_SLHE.dtype, device=q_SLHE.device)
        g_SGHLE, gq_SGHLE = blocks.by_group(grads[0]), blocks.by_group(gq_SLHE)
        wide = torch.promote_types(q_SLHE.dtype, torch.float32)
        gk_PLE, gv_PLE = (torch.zeros_like(x, dtype=wide) for x in (blocks.k_PLE, blocks.v_PLE))
        for start, stop, keys in blocks.spans():
            q_PBE, g_PBE = (blocks.rows(x, start, stop) for x in (blocks.q_SGHLE, g_SGHLE))
            p_PBM = blocks.probabilities(q_PBE, start, keys)
            gp_PBM = torch.bmm(g_PBE, blocks.v_PLE[:, keys].mT)
            gs_PBM = torch.ops.aten._softmax_backward_data(gp_PBM, p_PBM, -1, p_PBM.dtype)
            gv_PLE[:, keys].add_(torch.bmm(p_PBM.mT, g_PBE))
            gk_PLE[:, keys].add_(torch.bmm(gs_PBM.mT, q_PBE))
            place = gq_SGHLE[:, :, :, start:stop]
            torch.mul(torch.bmm(gs_PBM, blocks.k_PLE[:, keys]).view(place.shape), blocks.scale, out=place)
        gk_SLGE, gv_SLGE = (
            x.to(k_SLGE.dtype).unflatten(0, (blocks.sequences, blocks.groups)).transpose(1, 2)
            for x in (gk_PLE.mul_(blocks.scale), gv_PLE)
        )
        return gq_SLHE, gk_SLGE, gv_SLGE, None


def seen_mask(queries: int, past: int, window: int | None, device: torch.device) -> Tensor:
    """Return which of `past` + `queries` keys each of the latest `queries` tokens sees [L, M]."""
    seen_LM = torch.ones(queries, past + queries, dtype=torch.bool, device=device).tril(past)
    return seen_LM if window is None else seen_LM.triu(past - window + 1)


def causal_attention(q_SLHE: Tensor, k_SLGE: Tensor, v_SLGE: Tensor, window: int | None = None) -> Tensor:
    """Return softmax(q kᵀ / √E) v over each sequence's past, [S, L, H, E]."""
    length = q_SLHE.shape[1]
    if q_SLHE.device.type == "cpu" and torch.is_grad_enabled() and q_SLHE.requires_grad:
        result: Tensor = _CausalAttention.apply(q_SLHE, k_SLGE, v_SLGE, window or length)  # type: ignore[no-untyped-call]
        return result
    if window is not None and window < length:
        return fused_attention(q_SLHE, k_SLGE, v_SLGE, seen_mask(length, 0, window, q_SLHE.device), causal=False)
    return fused_attention(q_SLHE, k_SLGE, v_SLGE, None, causal=length > 1)
