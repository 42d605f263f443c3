"""Mamba-1 as a layer: input projection, convolution, selective scan, gate, output projection (arXiv:2312.00752).

Every projection goes through a linear group, so that adapters reach all of them. The step, A, D and the scan are
float32 or wider. Knows its own tensors and the batch's context and states.

Legend: T rows, D width, C inner channels, N state width, R rank of the step.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import softplus

from workers.kernels.rms_norm import rms_norm
from workers.kernels.selective_scan import ScanInputs, selective_scan
from workers.models.cache import LayerState
from workers.models.config import MambaSpec
from workers.models.layers.context import BatchContext
from workers.models.layers.linear import LinearGroup
from workers.models.layers.recurrence import Convolution, RecurrentState, Run, joined, runs_of
from workers.models.weight import Weight, new_weight


class Mamba1:
    """The S6 layer under Hugging Face's names."""

    def __init__(self, spec: MambaSpec, width: int, prefix: str, device: torch.device, dtype: torch.dtype) -> None:
        self.spec = spec
        inner, rank, state = spec.inner, spec.dt_rank, spec.state
        self.in_proj = LinearGroup({f"{prefix}.in_proj": 2 * inner}, width, device, dtype, bias=spec.proj_bias)
        self.conv = Convolution(prefix, (inner, spec.conv_kernel), device, dtype, bias=spec.conv_bias)
        self.x_proj = LinearGroup({f"{prefix}.x_proj": rank + 2 * state}, inner, device, dtype)
        self.dt_proj = LinearGroup({f"{prefix}.dt_proj": inner}, rank, device, dtype)
        self.out_proj = LinearGroup({f"{prefix}.out_proj": width}, inner, device, dtype, bias=spec.proj_bias)

        def wide(name: str, *shape: int, target: str) -> Weight:
            return new_weight(f"{prefix}.{name}", shape, device, dtype, wide=True, dense_target=target)

        self.dt_bias = wide("dt_proj.bias", inner, target="dt_bias")
        self.a_log = wide("A_log", inner, state, target="A_log")
        self.skip = wide("D", inner, target="D")
        self.norms: list[Weight] = []
        if spec.norms == "weighted":
            sizes = {"dt_layernorm": rank, "b_layernorm": state, "c_layernorm": state}
            self.norms = [new_weight(f"{prefix}.{n}.weight", (size,), device, dtype) for n, size in sizes.items()]

    def groups(self) -> list[LinearGroup]:
        """Return all four projections."""
        return [self.in_proj, self.x_proj, self.dt_proj, self.out_proj]

    def weights(self) -> list[Weight]:
        """Return convolution, step bias, A, D, and norms if there are some."""
        return [*self.conv.weights(), self.dt_bias, self.a_log, self.skip, *self.norms]

    def selective(self) -> list[Weight]:
        """Return x_proj."""
        return [member.weight for member in self.x_proj.members]

    def new_state(self, capacity: int) -> LayerState | None:  # noqa: ARG002
        """Return the state before the first token; its size does not depend on `capacity`."""
        return RecurrentState()

    def state_bytes(self, capacity: int) -> int:  # noqa: ARG002
        """Return the bytes of the convolution's last inputs and of the scan's state."""
        return self.conv.state_bytes() + self.spec.inner * self.spec.state * self.a_log.dtype.itemsize

    def forward(self, x_TD: Tensor, context: BatchContext, states: Sequence[LayerState | None] | None) -> Tensor:
        """Return the layer's output [T, D]."""
        scanned = [*self.conv.weights(), self.a_log, self.skip]
        runs = runs_of(context, cast("Sequence[RecurrentState] | None", states), scanned)
        inner_TC, gate_TC = self.in_proj.project(x_TD, context).chunk(2, dim=-1)
        u_TC = self.conv.forward(inner_TC, runs)
        sizes = [self.spec.dt_rank, self.spec.state, self.spec.state]
        selected_TX = context.by_part(self.norms, self.x_proj.project(u_TC, context), self._normed)
        step_TR, b_TN, c_TN = selected_TX.split(sizes, dim=-1)
        delta_TC = context.by_part([self.dt_bias], self.dt_proj.project(step_TR, context), self._delta)
        rows = (u_TC, delta_TC, b_TN, c_TN, gate_TC)
        own = {slot: (-self.a_log.of(slot).exp(), self.skip.of(slot)) for slot in {run.slot for run in runs}}
        y_TC = joined([_scan(run, rows, *own[run.slot]) for run in runs])
        return self.out_proj.project(y_TC, context)

    def _delta(self, step_TC: Tensor, slot: int) -> Tensor:
        dt_bias_C = self.dt_bias.of(slot)
        return softplus(step_TC.to(dt_bias_C.dtype) + dt_bias_C)

    def _normed(self, selected_TX: Tensor, slot: int) -> Tensor:
        """Norm step, input and output maps, each by itself."""
        if self.spec.norms == "none":
            return selected_TX
        parts = selected_TX.split([self.spec.dt_rank, self.spec.state, self.spec.state], dim=-1)
        if self.spec.norms == "weightless":
            weights = [part.new_ones(part.shape[-1]) for part in parts]
        else:
            weights = [norm.of(slot) for norm in self.norms]
        return torch.cat([rms_norm(p, w, self.spec.norm_eps) for p, w in zip(parts, weights, strict=True)], dim=-1)


def _scan(run: Run, rows: tuple[Tensor, ...], a_CN: Tensor, skip_C: Tensor) -> Tensor:
    u, delta, b, c, gate = (run.of(x) for x in rows)
    y_SLC, last = selective_scan(ScanInputs(u, delta, a_CN, b, c, skip_C, gate, run.scan_states()))
    run.keep_scan(last)
    return y_SLC
