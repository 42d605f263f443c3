"""The gate: on which data a run is judged, and whether it may be published. Knows windows and numbers, no model.

Perplexity is exp of the mean negative log-likelihood in nats over the positions that count.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from workers.training.dataset import Dataset, Window, flatten

GateData = Literal["validation_file", "held_out", "training_text"]
MIN_EXAMPLES_TO_HOLD_OUT = 10
HELD_OUT_FRACTION = 0.1
MAX_HELD_OUT = 32
_NAMES: dict[GateData | Literal["retention_file"], str] = {
    "validation_file": "validation",
    "held_out": "held-out",
    "training_text": "training-text",
    "retention_file": "the model forgets: retention-file",
}


@dataclass(frozen=True)
class GateSplit:
    """The windows trained on, those judged on, and where the latter come from."""

    train: tuple[Window, ...]
    judge: tuple[Window, ...]
    source: GateData


def split_for_gate(train: Dataset, validation: Dataset | None, *, seed: int, carve: bool) -> GateSplit:
    """Choose the gate's data: the validation examples; else a slice held out of training; else the training text.

    The slice is a tenth of the usable examples, at least 1 and at most 32, and is carved only out of 10 or more, and
    only with `carve`. It depends on `seed` and the number of usable examples alone.
    """
    if validation and validation.examples:
        return GateSplit(flatten(train.examples), flatten(validation.examples), "validation_file")
    count = len(train.examples)
    if not carve or count < MIN_EXAMPLES_TO_HOLD_OUT:
        windows = flatten(train.examples)
        return GateSplit(windows, windows, "training_text")
    size = min(MAX_HELD_OUT, max(1, int(count * HELD_OUT_FRACTION)))
    held = set(torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:size].tolist())
    kept = flatten(e for i, e in enumerate(train.examples) if i not in held)
    return GateSplit(kept, flatten(e for i, e in enumerate(train.examples) if i in held), "held_out")


def perplexity(nll: float, tokens: int) -> float:
    """Return exp(nll / tokens); inf where that overflows or nll is not finite."""
    mean = nll / tokens
    return math.exp(mean) if mean < 700 else math.inf


def regression(
    before: float, after: float, tolerance: float, source: GateData | Literal["retention_file"]
) -> str | None:
    """Return why the run must be rolled back, or None if it may be published: after <= tolerance * before."""
    if not math.isfinite(after):
        return f"{_NAMES[source]} perplexity rose from {before:.4g} to a value that is not finite"
    if after <= tolerance * before:
        return None
    went = "rose" if after > before else "only fell"
    return (
        f"{_NAMES[source]} perplexity {went} from {before:.4g} to {after:.4g}, "
        f"more than the {tolerance:g} times allowed"
    )
