"""EvermindLM's mixture: a shared ReLU net that is always on, and the best few of N routed ones, weighed by their gates.

The gates are a softmax over the selected logits only, and gradients reach the router through them. The shared net's
projections are linear groups, which adapters reach. Knows its own tensors and the batch's context.

Legend: T rows, D width, F hidden width of a net, E experts, K selected, R rows of one expert.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear, relu

from workers.kernels.moe import best_gates, mix_experts
from workers.models.cache import LayerState
from workers.models.config import SharedExpertSpec
from workers.models.layers.context import BatchContext
from workers.models.layers.linear import LinearGroup
from workers.models.weight import Weight, new_weight


class SharedExpert:
    """The layer; routed experts are stacked: w1 [E, F, D], b1 [E, F], w2 [E, D, F], b2 [E, D]."""

    def __init__(
        self, spec: SharedExpertSpec, width: int, prefix: str, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.top_k = spec.top_k
        self.router = new_weight(f"{prefix}.router.weight", (spec.experts, width), device, dtype)
        self.up = LinearGroup({f"{prefix}.shared.w1": spec.hidden}, width, device, dtype, bias=True)
        self.down = LinearGroup({f"{prefix}.shared.w2": width}, spec.hidden, device, dtype, bias=True)
        e, f = spec.experts, spec.hidden
        shapes = {"w1": (e, f, width), "b1": (e, f), "w2": (e, width, f), "b2": (e, width)}
        self.experts = {n: new_weight(f"{prefix}.experts.{n}", s, device, dtype) for n, s in shapes.items()}

    def groups(self) -> list[LinearGroup]:
        """Return the shared net."""
        return [self.up, self.down]

    def weights(self) -> list[Weight]:
        """Return the router and the routed experts."""
        return [self.router, *self.experts.values()]

    def selective(self) -> list[Weight]:
        """Return nothing."""
        return []

    def new_state(self, capacity: int) -> LayerState | None:  # noqa: ARG002
        """Return None."""
        return None

    def state_bytes(self, capacity: int) -> int:  # noqa: ARG002
        """Return 0."""
        return 0

    def forward(self, x_TD: Tensor, context: BatchContext, states: Sequence[LayerState | None] | None) -> Tensor:  # noqa: ARG002
        """Return the shared net's output plus the gated ones of the selected experts [T, D]."""
        shared_TD = self.down.project(relu(self.up.project(x_TD, context)), context)
        return shared_TD + context.by_part(self.weights(), x_TD, self._routed)

    def _routed(self, x_TD: Tensor, slot: int) -> Tensor:
        gates_TK, chosen_TK = best_gates(linear(x_TD, self.router.of(slot)), self.top_k, over_all=False)
        w1, b1, w2, b2 = (self.experts[name].of(slot).unbind() for name in ("w1", "b1", "w2", "b2"))

        def net(expert: int, rows_RD: Tensor) -> Tensor:
            return linear(relu(linear(rows_RD, w1[expert], b1[expert])), w2[expert], b2[expert])

        return mix_experts(x_TD, gates_TK, chosen_TK, len(w1), net)
