"""What every kind of layer offers to the model around it, and what it is given. Knows no kind of layer.

Legend: T rows, D width.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from workers.models.cache import LayerState
from workers.models.layers.context import BatchContext
from workers.models.layers.linear import LinearGroup
from workers.models.weight import Weight


class Mixer(Protocol):
    """One kind of layer. `forward` may be called with a state for each sequence, which it then updates in place."""

    def groups(self) -> list[LinearGroup]:
        """Return the linear modules, which adapters may target."""
        ...

    def weights(self) -> list[Weight]:
        """Return all other tensors."""
        ...

    def selective(self) -> list[Weight]:
        """Return the selective projection: what makes a state-space layer's step, input and output maps."""
        ...

    def new_state(self, capacity: int) -> LayerState | None:
        """Return an empty state for one sequence of up to `capacity` tokens; None if the layer has none."""
        ...

    def state_bytes(self, capacity: int) -> int:
        """Return how many bytes that state takes at most."""
        ...

    def forward(self, x_TD: Tensor, context: BatchContext, states: Sequence[LayerState | None] | None) -> Tensor:
        """Return what the layer adds to the residual stream [T, D]."""
        ...
