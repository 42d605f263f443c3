"""A mixture of SwiGLU experts: the best few of each row, weighed by their gates, beside an MLP that is always on.

Router and experts are weights, as Hugging Face has them, not linear modules: adapters reach the shared MLP alone.
Gradients reach the router through the gates. Knows its own tensors and the batch's context.

Legend: T rows, D width, E experts, F hidden width of an expert, R rows of one expert, N outputs and K inputs of a map.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from workers.kernels.moe import best_gates, mix_experts
from workers.kernels.swiglu import swiglu
from workers.models.cache import LayerState
from workers.models.config import MoeSpec
from workers.models.layers.context import BatchContext
from workers.models.layers.linear import LinearGroup
from workers.models.layers.mlp import Mlp
from workers.models.weight import Weight, new_weight


class ExpertMaps:
    """One linear map for each expert, [E, N, K] in memory: under one name, or under `{}` names of each expert's own.

    Several names are parts of N, in order.
    """

    def __init__(self, names: Sequence[str], stack_ENK: Tensor) -> None:
        self.maps_NK = list(stack_ENK.unbind())
        self.stacked = "{}" not in names[0]
        if self.stacked:
            self.parts = [[Weight(names[0], stack_ENK)]]
        else:
            self.parts = [
                [Weight(name.format(e), part) for name, part in zip(names, map_NK.chunk(len(names)), strict=True)]
                for e, map_NK in enumerate(self.maps_NK)
            ]

    def weights(self) -> list[Weight]:
        """Return all parts."""
        return [part for parts in self.parts for part in parts]

    def of(self, slot: int) -> Sequence[Tensor]:
        """Return the experts' maps [N, K] as `slot` computes with them."""
        if slot < 0 or not any(weight.changed_by(slot) for weight in self.weights()):
            return self.maps_NK
        if self.stacked:
            return self.parts[0][0].of(slot).unbind()
        return [torch.cat([part.of(slot) for part in parts]) for parts in self.parts]


class Moe:
    """Routed experts, and the shared MLP where there is one."""

    def __init__(self, spec: MoeSpec, width: int, prefix: str, device: torch.device, dtype: torch.dtype) -> None:
        self.spec = spec
        self.router = new_weight(f"{prefix}.{spec.router}", (spec.experts, width), device, dtype)

        def maps(names: Sequence[str], outputs: int, inputs: int) -> ExpertMaps:
            stack_ENK = torch.empty(spec.experts, outputs, inputs, device=device, dtype=dtype)
            return ExpertMaps([f"{prefix}.{name}" for name in names], stack_ENK)

        self.gate_up = maps(spec.gate_up, 2 * spec.hidden, width)
        self.down = maps([spec.down], width, spec.hidden)
        self.shared = None if spec.shared is None else Mlp(spec.shared, width, prefix, device, dtype)

    def groups(self) -> list[LinearGroup]:
        """Return the shared MLP's projections."""
        return [] if self.shared is None else self.shared.groups()

    def weights(self) -> list[Weight]:
        """Return router and experts."""
        return [self.router, *self.gate_up.weights(), *self.down.weights()]

    def selective(self) -> list[Weight]:
        """Return nothing."""
        return []

    def new_state(self, capacity: int) -> LayerState | None:  # noqa: ARG002
        """Return None."""
        return None

    def state_bytes(self, capacity: int) -> int:  # noqa: ARG002
        """Return 0."""
        return 0

    def forward(self, x_TD: Tensor, context: BatchContext, states: Sequence[LayerState | None] | None) -> Tensor:
        """Return the gated experts' outputs plus the shared MLP's [T, D]."""
        weights = [self.router, *self.gate_up.weights(), *self.down.weights()]
        y_TD = context.by_part(weights, x_TD, self._routed)
        return y_TD if self.shared is None else y_TD + self.shared.forward(x_TD, context, states)

    def _routed(self, x_TD: Tensor, slot: int) -> Tensor:
        logits_TE = linear(x_TD, self.router.of(slot))
        gates_TK, chosen_TK = best_gates(logits_TE, self.spec.top_k, over_all=self.spec.gates == "all")
        gate_up, down = self.gate_up.of(slot), self.down.of(slot)

        def net(expert: int, rows_RD: Tensor) -> Tensor:
            return linear(swiglu(linear(rows_RD, gate_up[expert])), down[expert])

        return mix_experts(x_TD, gates_TK, chosen_TK, self.spec.experts, net)
