"""What the state-space layers share: rows cut into runs of sequences, the convolution before the scan, their states.

Knows tensors, lengths and states. Legend: T rows, S sequences of a run, L tokens of one, C channels, W taps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from workers.kernels.causal_conv import causal_conv
from workers.models.layers.context import BatchContext
from workers.models.layers.runs import equal_runs
from workers.models.weight import Weight, new_weight


class Row(NamedTuple):
    """One sequence's part of what a run left behind [S, ...]."""

    of_S: Tensor
    number: int


class RecurrentState:
    """Of one sequence: the convolution's last W − 1 inputs and the scan's state, None before the first token."""

    cuttable = False

    def __init__(self, taps: Row | None = None, scan: Row | None = None, *, shared: bool = False) -> None:
        self.taps = taps
        self.scan = scan
        self.shared = shared
        """Whether another sequence may have the scan's state too, so that nobody may write in it."""

    def at(self, length: int, capacity: int) -> "RecurrentState":  # noqa: ARG002
        """Return an independent copy: both go on from the same tensors, which are replaced and not written in."""
        self.shared = True
        return RecurrentState(self.taps, self.scan, shared=True)

    def compact(self) -> "RecurrentState":
        """Return a copy of its own rows, which lets go of those of the sequences that ran with it."""
        return RecurrentState(*(row and Row(row.of_S[row.number, None].clone(), 0) for row in (self.taps, self.scan)))

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that its rows are a part of."""
        yield from (row.of_S for row in (self.taps, self.scan) if row is not None)


def _together(rows: Sequence[Row | None]) -> Tensor | None:
    """Return the rows as one tensor [S, ...], with zeros for sequences at their start; None if all are.

    Sequences that ran together and go on together are taken as they lie, which spares a copy for each token.
    """
    known = [row for row in rows if row is not None]
    if not known:
        return None
    of_S = known[0].of_S
    if len(known) == len(rows) == len(of_S) and all(r.of_S is of_S and r.number == i for i, r in enumerate(known)):
        return of_S
    zeros = torch.zeros_like(of_S[0])
    return torch.stack([zeros if row is None else row.of_S[row.number] for row in rows])


@dataclass(frozen=True)
class Run:
    """Neighbouring sequences of equal length: their rows, and their states where there are some.

    `slot` is whose dense tensors they compute with (-1: the base's).
    """

    count: int
    length: int
    rows: slice
    slot: int
    states: Sequence[RecurrentState] | None

    def of(self, x_TC: Tensor) -> Tensor:
        """View the run's rows as [S, L, ...]."""
        return x_TC[self.rows].view(self.count, self.length, *x_TC.shape[1:])

    def scan_states(self) -> Tensor | None:
        """Return the scan's states before the run [S, ...], None at the start of all."""
        return None if self.states is None else _together([state.scan for state in self.states])

    @property
    def owns_scan_states(self) -> bool:
        """Whether nobody needs what `scan_states` returned once the run has gone on from it."""
        return not any(state.shared for state in self.states or ())

    def taps(self) -> Tensor | None:
        """Return the inputs that precede the run [S, W − 1, C], None at the start of all."""
        return None if self.states is None else _together([state.taps for state in self.states])

    def keep_taps(self, after_SWC: Tensor) -> None:
        """Remember the last inputs of the run, without the others that they are a part of."""
        after_SWC = after_SWC if self.states is None else after_SWC.clone()
        for number, state in enumerate(self.states or ()):
            state.taps = Row(after_SWC, number)

    def keep_scan(self, last_S: Tensor) -> None:
        """Remember the scan's states after the run."""
        for number, state in enumerate(self.states or ()):
            state.scan, state.shared = Row(last_S, number), False


def runs_of(context: BatchContext, states: Sequence[RecurrentState] | None, weights: Sequence[Weight]) -> list[Run]:
    """Return the runs of a packed batch, each with one slot's `weights`; `states` has one entry a sequence."""
    runs = []
    for part in context.parts(weights):
        first, row = part.sequences.start, part.rows.start
        for count, length in equal_runs(context.lengths[part.sequences]):
            rows = slice(row, row + count * length)
            runs.append(Run(count, length, rows, part.slot, states and states[first : first + count]))
            first, row = first + count, rows.stop
    return runs


def joined(parts: list[Tensor]) -> Tensor:
    """Lay the runs' results [S, L, ...] end to end [T, ...]."""
    flat = [part.flatten(0, 1) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


class Convolution:
    """`conv1d`: depthwise and causal, with SiLU. Weights in float32 or wider, under the names that torch gives them."""

    def __init__(
        self, prefix: str, shape: tuple[int, int], device: torch.device, dtype: torch.dtype, *, bias: bool
    ) -> None:
        channels, taps = shape
        self._state_bytes = channels * (taps - 1) * dtype.itemsize
        name = f"{prefix}.conv1d"
        self.weight = new_weight(f"{name}.weight", (channels, 1, taps), device, dtype, wide=True, dense_target="conv1d")
        self.bias = None
        if bias:
            self.bias = new_weight(f"{name}.bias", (channels,), device, dtype, wide=True, dense_target="conv1d")

    def weights(self) -> list[Weight]:
        """Return the kernel and, if there is one, the bias."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def state_bytes(self) -> int:
        """Return the bytes of a sequence's last W − 1 inputs."""
        return self._state_bytes

    def forward(self, x_TC: Tensor, runs: list[Run]) -> Tensor:
        """Return silu(conv(x)) [T, C], continuing each sequence's state and updating it."""
        parts = []
        for run in runs:
            weight_CW = self.weight.of(run.slot).squeeze(1)
            bias_C = None if self.bias is None else self.bias.of(run.slot)
            y_SLC, after_SWC = causal_conv(run.of(x_TC), weight_CW, bias_C, run.taps(), activate=True)
            run.keep_taps(after_SWC)
            parts.append(y_SLC)
        return joined(parts)
