"""The SwiGLU MLP. Knows its own tensors and the batch's context; nothing of what stands around it.

Legend: T rows, D width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.kernels.swiglu import swiglu
from workers.models.cache import LayerState
from workers.models.config import MlpSpec
from workers.models.layers.context import BatchContext
from workers.models.layers.linear import LinearGroup
from workers.models.weight import Weight


class Mlp:
    """down(silu(gate(x)) · up(x)); stateless."""

    def __init__(self, spec: MlpSpec, width: int, prefix: str, device: torch.device, dtype: torch.dtype) -> None:
        each = 2 * spec.hidden // len(spec.gate_up)
        gate_up = {f"{prefix}.{name}": each for name in spec.gate_up}
        self.gate_up = LinearGroup(gate_up, width, device, dtype, bias=spec.bias)
        self.down = LinearGroup({f"{prefix}.{spec.down}": width}, spec.hidden, device, dtype, bias=spec.bias)

    def groups(self) -> list[LinearGroup]:
        """Return gate and up, and down."""
        return [self.gate_up, self.down]

    def weights(self) -> list[Weight]:
        """Return nothing: all is linear."""
        return []

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
        """Return the MLP's output [T, D]."""
        return self.down.project(swiglu(self.gate_up.project(x_TD, context)), context)
