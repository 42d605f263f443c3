"""Everything about a run that changes while it runs. Nothing else may influence what comes next.

The data order is a pure function of (seed, epoch) and the layers draw no random numbers, so `epoch` and `step_in_epoch`
are the random state as well as the data cursor.
"""

from dataclasses import dataclass, field

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
    grad_norm: float = 0.0
    """Of the last applied step, before the clip."""
    without_gradient: list[str] = []
    """Parameters that have not received a non-zero gradient yet."""
    telling_steps: int = 0
    """Applied steps whose data could give every parameter a gradient."""
    perplexity_before: float | None = None
    seconds: float = 0.0
    """Time spent computing, the caller's time between slices left out."""


@dataclass
class RunState:
    """Weights and moments by parameter name, and the progress."""

    weights: dict[str, Tensor]
    moments: dict[str, Moments] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
