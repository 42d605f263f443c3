"""Causal grouped-query attention as a layer. Knows its own tensors and the batch's context and states.

Legend: T rows, D width, H query heads, G key/value heads, E head width, X = H + 2G.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from workers.models.cache import LayerState
from workers.models.config import AttentionSpec
from workers.models.layers.context import BatchContext
from workers.models.layers.linear import LinearGroup
from workers.models.layers.packed_attention import KeyValueState, cached_attention, packed_attention
from workers.models.layers.rope import rotate, rotate_
from workers.models.weight import Weight


class Attention:
    """q, k and v from one product; softmax attention over the past of the own sequence; output projection."""

    def __init__(self, spec: AttentionSpec, width: int, prefix: str, device: torch.device, dtype: torch.dtype) -> None:
        self.rotary = spec.rotary
        self.heads, self.kv_heads, self.head_dim = spec.heads, spec.kv_heads, spec.head_dim
        q_width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        qkv = {f"{prefix}.q_proj": q_width, f"{prefix}.k_proj": kv_width, f"{prefix}.v_proj": kv_width}
        self.qkv = LinearGroup(qkv, width, device, dtype)
        self.output = LinearGroup({f"{prefix}.o_proj": width}, q_width, device, dtype)

    def groups(self) -> list[LinearGroup]:
        """Return q, k and v, and the output projection."""
        return [self.qkv, self.output]

    def weights(self) -> list[Weight]:
        """Return nothing: all is linear."""
        return []

    def selective(self) -> list[Weight]:
        """Return nothing."""
        return []

    def new_state(self, capacity: int) -> LayerState | None:
        """Return room for `capacity` keys and values."""
        shape = (capacity, 2 * self.kv_heads, self.head_dim)
        return KeyValueState(self.qkv.weight_NK.new_empty(shape))

    def forward(self, x_TD: Tensor, context: BatchContext, states: Sequence[LayerState | None] | None) -> Tensor:
        """Return the attention's output [T, D]."""
        heads, groups = self.heads, self.kv_heads
        rotation = context.rotation if self.rotary else None
        qkv_TXE = self.qkv.project(x_TD, context).view(-1, heads + 2 * groups, self.head_dim)
        if states is None:
            qk_TXE, v_TGE = qkv_TXE.split([heads + groups, groups], dim=1)
            if rotation is not None:
                qk_TXE = rotate(qk_TXE, rotation)
            q_THE, k_TGE = qk_TXE.split([heads, groups], dim=1)
            out_THE = packed_attention(q_THE, k_TGE, v_TGE, context.lengths)
        else:
            if rotation is not None:
                rotate_(qkv_TXE.narrow(1, 0, heads + groups), rotation)
            q_THE, kv_T2GE = qkv_TXE.split_with_sizes([heads, 2 * groups], dim=1)
            out_THE = cached_attention(q_THE, kv_T2GE, context.lengths, cast("Sequence[KeyValueState]", states))
        return self.output.project(out_THE.flatten(1), context)
