"""One Llama decoder block: RMSNorm, grouped-query attention, RMSNorm, SwiGLU MLP, residuals around both.

Knows its own tensors and the batch's lengths, positions, route and caches; nothing of adapters beyond the route.

Legend: T rows, D width, H query heads, G key/value heads, E head width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from workers.kernels.rms_norm import rms_norm
from workers.kernels.swiglu import swiglu
from workers.models.cache import SequenceCache
from workers.models.config import ModelConfig
from workers.models.layers.attention import cached_attention, packed_attention
from workers.models.layers.linear import LinearGroup, Route
from workers.models.layers.rope import Rotation, rotate, rotate_


class BatchContext(NamedTuple):
    """What every layer needs of a batch, made once per forward."""

    lengths: Sequence[int]
    rotation: Rotation
    route: Route
    caches: Sequence[SequenceCache] | None


class Block(nn.Module):
    """Decoder block number `index`; module and weight names are Hugging Face's."""

    def __init__(self, config: ModelConfig, index: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.config, self.index = config, index
        width, hidden = config.hidden_size, config.intermediate_size
        q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
        qkv = {f"{attention}.q_proj": q_width, f"{attention}.k_proj": kv_width, f"{attention}.v_proj": kv_width}
        self.qkv = LinearGroup(qkv, width, device, dtype)
        self.output = LinearGroup({f"{attention}.o_proj": width}, q_width, device, dtype)
        self.gate_up = LinearGroup({f"{mlp}.gate_proj": hidden, f"{mlp}.up_proj": hidden}, width, device, dtype)
        self.down = LinearGroup({f"{mlp}.down_proj": width}, hidden, device, dtype)
        self.input_norm_D = nn.Parameter(torch.empty(width, device=device, dtype=dtype), requires_grad=False)
        self.mlp_norm_D = nn.Parameter(torch.empty(width, device=device, dtype=dtype), requires_grad=False)

    def groups(self) -> list[LinearGroup]:
        """The block's fused linear modules."""
        return [self.qkv, self.output, self.gate_up, self.down]

    def forward(self, x_TD: Tensor, context: BatchContext) -> Tensor:
        """Return the residual stream after this block [T, D]."""
        eps = self.config.norm_eps
        x_TD = x_TD + self._attention(rms_norm(x_TD, self.input_norm_D, eps), context)
        hidden_TF = swiglu(self.gate_up.project(rms_norm(x_TD, self.mlp_norm_D, eps), context.route))
        return x_TD + self.down.project(hidden_TF, context.route)

    def _attention(self, x_TD: Tensor, context: BatchContext) -> Tensor:
        heads, groups = self.config.heads, self.config.kv_heads
        qkv_TXE = self.qkv.project(x_TD, context.route).unflatten(1, (heads + 2 * groups, self.config.head_dim))
        if context.caches is None:
            qk_TXE, v_TGE = qkv_TXE.split([heads + groups, groups], dim=1)
            q_THE, k_TGE = rotate(qk_TXE, context.rotation).split([heads, groups], dim=1)
            out_THE = packed_attention(q_THE, k_TGE, v_TGE, context.lengths)
        else:
            rotate_(qkv_TXE.narrow(1, 0, heads + groups), context.rotation)
            q_THE, kv_T2GE = qkv_TXE.split_with_sizes([heads, 2 * groups], dim=1)
            out_THE = cached_attention(q_THE, kv_T2GE, context.lengths, context.caches, self.index)
        return self.output.project(out_THE.flatten(1), context.route)
