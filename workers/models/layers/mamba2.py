"""Mamba-2 as a layer: one input projection, convolution, scan with a decay a head, gated norm, output projection.

Both projections go through a linear group, so that adapters reach them. The step, A, D and the scan are float32 or
wider (arXiv:2405.21060). Knows its own tensors and the batch's context and states.

Legend: T rows, D width, C inner channels = H heads of width P, G groups that share B and C, N state width.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import softplus

from workers.kernels.gated_norm import gated_norm
from workers.kernels.ssd import SsdInputs, ssd
from workers.models.cache import LayerState
from workers.models.config import Mamba2Spec
from workers.models.layers.context import BatchContext
from workers.models.layers.linear import LinearGroup
from workers.models.layers.recurrence import Convolution, RecurrentState, Run, joined, runs_of
from workers.models.weight import Weight, new_weight


class Mamba2:
    """The SSD layer under Hugging Face's names; in_proj makes gate, x, B, C and step at once."""

    def __init__(self, spec: Mamba2Spec, width: int, prefix: str, device: torch.device, dtype: torch.dtype) -> None:
        self.spec = spec
        self.maps = spec.groups * spec.state
        projected = 2 * spec.inner + 2 * self.maps + spec.heads
        self.in_proj = LinearGroup({f"{prefix}.in_proj": projected}, width, device, dtype, bias=spec.proj_bias)
        channels = spec.inner + 2 * self.maps
        self.conv = Convolution(prefix, (channels, spec.conv_kernel), device, dtype, bias=spec.conv_bias)
        self.out_proj = LinearGroup({f"{prefix}.out_proj": width}, spec.inner, device, dtype, bias=spec.proj_bias)

        def wide(name: str) -> Weight:
            return new_weight(f"{prefix}.{name}", (spec.heads,), device, dtype, wide=True, dense_target=name)

        self.dt_bias, self.a_log, self.skip = wide("dt_bias"), wide("A_log"), wide("D")
        self.norm = new_weight(f"{prefix}.norm.weight", (spec.inner,), device, dtype)

    def groups(self) -> list[LinearGroup]:
        """Return both projections."""
        return [self.in_proj, self.out_proj]

    def weights(self) -> list[Weight]:
        """Return convolution, step bias, A, D and the gated norm."""
        return [*self.conv.weights(), self.dt_bias, self.a_log, self.skip, self.norm]

    def selective(self) -> list[Weight]:
        """Return in_proj, whose rows for B, C and step are the selective projection."""
        return [member.weight for member in self.in_proj.members]

    def new_state(self, capacity: int) -> LayerState | None:  # noqa: ARG002
        """Return the state before the first token; its size does not depend on `capacity`."""
        return RecurrentState()

    def state_bytes(self, capacity: int) -> int:  # noqa: ARG002
        """Return the bytes of the convolution's last inputs and of the scan's state."""
        return self.conv.state_bytes() + self.spec.inner * self.spec.state * self.a_log.dtype.itemsize

    def forward(self, x_TD: Tensor, context: BatchContext, states: Sequence[LayerState | None] | None) -> Tensor:
        """Return the layer's output [T, D]."""
        spec = self.spec
        scanned = [*self.conv.weights(), self.a_log, self.skip]
        runs = runs_of(context, cast("Sequence[RecurrentState] | None", states), scanned)
        sizes = [spec.inner, spec.inner + 2 * self.maps, spec.heads]
        gate_TC, mixed_TX, step_TH = self.in_proj.project(x_TD, context).split(sizes, dim=-1)
        u_TC, b_TX, c_TX = self.conv.forward(mixed_TX, runs).split([spec.inner, self.maps, self.maps], dim=-1)
        u_THP = u_TC.unflatten(-1, (spec.heads, spec.head_dim))
        b_TGN, c_TGN = (x.unflatten(-1, (spec.groups, spec.state)) for x in (b_TX, c_TX))
        rows = (u_THP, context.by_part([self.dt_bias], step_TH, self._delta), b_TGN, c_TGN)
        own = {slot: (-self.a_log.of(slot).exp(), self.skip.of(slot)) for slot in {run.slot for run in runs}}
        y_TC = joined([_scan(run, rows, *own[run.slot]) for run in runs]).flatten(1)
        return self.out_proj.project(self._normed(y_TC, gate_TC, context), context)

    def _delta(self, step_TH: Tensor, slot: int) -> Tensor:
        dt_bias_H = self.dt_bias.of(slot)
        delta_TH = softplus(step_TH.to(dt_bias_H.dtype) + dt_bias_H)
        low, high = self.spec.dt_limit
        return delta_TH.clamp(low, high) if low > 0 or high != float("inf") else delta_TH

    def _normed(self, y_TC: Tensor, gate_TC: Tensor, context: BatchContext) -> Tensor:
        parts = [
            gated_norm(y_TC[p.rows], gate_TC[p.rows], self.norm.of(p.slot), self.spec.norm_eps, self.spec.norm_groups)
            for p in context.parts([self.norm])
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _scan(run: Run, rows: tuple[Tensor, ...], a_H: Tensor, skip_H: Tensor) -> Tensor:
    u, delta, b, c = (run.of(x) for x in rows)
    given = SsdInputs(u, delta, a_H, b, c, skip_H, run.scan_states())
    y_SLHP, last = ssd(given, overwrite_state=run.owns_scan_states)
    run.keep_scan(last)
    return y_SLHP
