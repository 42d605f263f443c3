"""Everything about a run that changes while it runs. Nothing else may influence what comes next.

The data order is a pure function of (seed, epoch) and the layers draw no random numbers, so `epoch` and `step_in_epoch`
are the random state as well as the data cursor.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict
from torch import Tensor

from workers.training.adamw import Moments


class Progress(BaseModel):
    """Counters and sums of a run; strict, because a snapshot brings them back."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    step: int = 0
    """Optimizer steps done, skipped ones included."""
    epoch: int = 0
    """Epochs completed."""
    step_in_epoch: int = 0
    epoch_nll: float = 0.0
    """Nats over the counted positions of this epoch's applied steps."""
    epoch_targets: int = 0
    losses: list[float] = []
    tokens: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    """Since the last applied step or, after it, since the run was last set back."""
    set_back: int = 0
    """How often the run went back to its last good state; each time halves the learning rate."""
    grad_norm: float = 0.0
    """Of the last applied step, before the clip."""
    without_gradient: list[str] = []
    """Parameters that have not received a non-zero gradient yet."""
    telling_steps: int = 0
    """Applied steps whose data could give every parameter a gradient."""
    perplexity_before: float | None = None
    retention_before: float | None = None
    seconds: float = 0.0
    """Spent at work by all processes, what other runs took in between included."""


@dataclass(frozen=True)
class GoodState:
    """A copy of weights and moments that gave a finite loss and gradient, or those of the start."""

    weights: dict[str, Tensor]
    moments: dict[str, Moments]


@dataclass
class RunState:
    """Weights and moments by parameter name, what to go back to when they go bad, and the progress."""

    weights: dict[str, Tensor]
    moments: dict[str, Moments]
    good: GoodState
    progress: Progress


def good_copy(weights: Mapping[str, Tensor], moments: Mapping[str, Moments]) -> GoodState:
    """Return a copy for later. Moments are never written in place, so theirs need not be copied."""
    return GoodState({name: weight.detach().clone() for name, weight in weights.items()}, dict(moments))


def go_back(state: RunState) -> None:
    """Put weights and moments back to the good copy; step, data cursor and counters go on."""
    for name, weight in state.good.weights.items():
        state.weights[name].data.copy_(weight)
    state.moments = dict(state.good.moments)
