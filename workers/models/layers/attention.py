"""Causal grouped-query attention as a layer. Knows its own tensors and the batch's context and states.

Legend: T rows, D width, H query heads, G key/value heads, E head width, X = H + 2G.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from workers.kernels.rms_norm import rms_norm
from workers.models.cache import LayerState
from workers.models.config import AttentionSpec
from workers.models.layers.context import BatchContext
from workers.models.layers.key_value_state import KeyValueState, rounded_up
from workers.models.layers.linear import LinearGroup
from workers.models.layers.packed_attention import cached_attention, packed_attention
from workers.models.layers.rope import Rotation, rotate, rotate_
from workers.models.weight import Weight, new_weight


class Attention:
    """q, k and v from one product; softmax attention over the past of the own sequence; output projection.

    Queries carry the part of the scores' scale that 1/√E is not.
    """

    def __init__(self, spec: AttentionSpec, width: int, prefix: str, device: torch.device, dtype: torch.dtype) -> None:
        self.rotary = spec.rotary
        self.rotary_dim = spec.head_dim if spec.rotary_dim is None else spec.rotary_dim
        self.heads, self.kv_heads, self.head_dim = spec.heads, spec.kv_heads, spec.head_dim
        q_width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        qkv = {f"{prefix}.q_proj": q_width, f"{prefix}.k_proj": kv_width, f"{prefix}.v_proj": kv_width}
        self.qkv = LinearGroup(qkv, width, device, dtype, bias=spec.qkv_bias)
        self.output = LinearGroup({f"{prefix}.o_proj": width}, q_width, device, dtype, bias=spec.output_bias)
        self.window, self.qk_norm_eps = spec.window, spec.qk_norm_eps
        self.q_scale = 1.0 if spec.scale is None else spec.scale * spec.head_dim**0.5
        normed = () if spec.qk_norm_eps is None else ("q_norm", "k_norm")
        self.norms = [new_weight(f"{prefix}.{name}.weight", (spec.head_dim,), device, dtype) for name in normed]

    def groups(self) -> list[LinearGroup]:
        """Return q, k and v, and the output projection."""
        return [self.qkv, self.output]

    def weights(self) -> list[Weight]:
        """Return the norms of queries and keys, where there are some."""
        return self.norms

    def selective(self) -> list[Weight]:
        """Return nothing."""
        return []

    def new_state(self, capacity: int) -> LayerState | None:
        """Return a state that grows to `capacity` keys and values."""
        return KeyValueState(self.qkv.weight_NK.new_empty((0, 2 * self.kv_heads, self.head_dim)), capacity)

    def state_bytes(self, capacity: int) -> int:
        """Return the bytes of whole blocks for `capacity` keys and values."""
        return rounded_up(capacity) * 2 * self.kv_heads * self.head_dim * self.qkv.weight_NK.dtype.itemsize

    def forward(self, x_TD: Tensor, context: BatchContext, states: Sequence[LayerState | None] | None) -> Tensor:
        """Return the attention's output [T, D]."""
        heads, groups = self.heads, self.kv_heads
        rotation = context.rotation if self.rotary else None
        qkv_TXE = self.qkv.project(x_TD, context).view(-1, heads + 2 * groups, self.head_dim)
        if self.norms:
            qkv_TXE = context.by_part(self.norms, qkv_TXE, self._normed)
        if states is None:
            qk_TXE, v_TGE = qkv_TXE.split([heads + groups, groups], dim=1)
            if rotation is not None:
                qk_TXE = self._rotated(qk_TXE, rotation)
            q_THE, k_TGE = qk_TXE.split([heads, groups], dim=1)
            q_THE = q_THE if self.q_scale == 1 else q_THE * self.q_scale
            out_THE = packed_attention(q_THE, k_TGE, v_TGE, context.lengths, self.window)
        else:
            if rotation is not None:
                turned_TXE = qkv_TXE if self.rotary_dim == self.head_dim else qkv_TXE.narrow(2, 0, self.rotary_dim)
                rotate_(turned_TXE.narrow(1, 0, heads + groups), rotation)
            q_THE, kv_T2GE = qkv_TXE.split_with_sizes([heads, 2 * groups], dim=1)
            q_THE = q_THE if self.q_scale == 1 else q_THE * self.q_scale
            past = cast("Sequence[KeyValueState]", states)
            out_THE = cached_attention(q_THE, kv_T2GE, context.lengths, past, self.window)
        return self.output.project(out_THE.flatten(1), context)

    def _rotated(self, x_TXE: Tensor, rotation: Rotation) -> Tensor:
        if self.rotary_dim == self.head_dim:
            return rotate(x_TXE, rotation)
        turned_TXE, still_TXE = x_TXE.split([self.rotary_dim, self.head_dim - self.rotary_dim], dim=-1)
        return torch.cat([rotate(turned_TXE, rotation), still_TXE], dim=-1)

    def _normed(self, qkv_TXE: Tensor, slot: int) -> Tensor:
        """Norm each query head and each key head."""
        assert self.qk_norm_eps is not None
        q_THE, k_TGE, v_TGE = qkv_TXE.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        normed = [
            rms_norm(x.flatten(0, 1), norm.of(slot), self.qk_norm_eps).view(x.shape)
            for x, norm in zip((q_THE, k_TGE), self.norms, strict=True)
        ]
        return torch.cat([*normed, v_TGE], dim=1)
