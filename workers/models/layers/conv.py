"""A depthwise causal convolution as a layer of its own (EvermindLM).

Knows its kernel, and the batch's context and states.

Legend: T rows, D channels, W taps.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from workers.kernels.causal_conv import causal_conv
from workers.models.cache import LayerState
from workers.models.config import ConvSpec
from workers.models.layers.context import BatchContext
from workers.models.layers.linear import LinearGroup
from workers.models.layers.recurrence import RecurrentState, joined, runs_of
from workers.models.weight import Weight, new_weight


class Conv:
    """y_t = Σ_k weight[:, k] · x_{t − k}; the kernel is [D, W] in float32 or wider."""

    def __init__(self, spec: ConvSpec, width: int, prefix: str, device: torch.device, dtype: torch.dtype) -> None:
        name, shape = f"{prefix}.weight", (width, spec.taps)
        self._itemsize = dtype.itemsize
        self.weight = new_weight(name, shape, device, dtype, wide=True, dense_target="conv1d")

    def groups(self) -> list[LinearGroup]:
        """Return nothing: a depthwise kernel is no projection."""
        return []

    def weights(self) -> list[Weight]:
        """Return the kernel."""
        return [self.weight]

    def selective(self) -> list[Weight]:
        """Return nothing."""
        return []

    def new_state(self, capacity: int) -> LayerState | None:  # noqa: ARG002
        """Return the state before the first token; its size does not depend on `capacity`."""
        return RecurrentState()

    def state_bytes(self, capacity: int) -> int:  # noqa: ARG002
        """Return the bytes of the last W − 1 inputs."""
        width, taps = self.weight.shape
        return width * (taps - 1) * self._itemsize

    def forward(self, x_TD: Tensor, context: BatchContext, states: Sequence[LayerState | None] | None) -> Tensor:
        """Return the convolution [T, D]."""
        parts = []
        for run in runs_of(context, cast("Sequence[RecurrentState] | None", states), [self.weight]):
            latest_last_DW = self.weight.of(run.slot).flip(1)
            y_SLD, after_SWD = causal_conv(run.of(x_TD), latest_last_DW, None, run.taps(), activate=False)
            run.keep_taps(after_SWD)
            parts.append(y_SLD)
        return joined(parts)
