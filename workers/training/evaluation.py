"""The gate: on which data a run is judged, and whether it may be published. Knows numbers and examples, no model.

Perplexity is exp of the mean negative log-likelihood in nats over the positions that count.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from app.text.tokenize import TokenizedExample

GateData = Literal["validation_file", "held_out", "training_text"]
MIN_EXAMPLES_TO_HOLD_OUT = 10
HELD_OUT_FRACTION = 0.1
MAX_HELD_OUT = 32
_NAMES: dict[GateData, str] = {
    "validation_file": "validation",
    "held_out": "held-out",
    "training_text": "training-text",
}


@dataclass(frozen=True)
class GateSplit:
    """What is trained on, what is judged on, and where the latter comes from."""

    train: list[TokenizedExample]
    judge: list[TokenizedExample]
    source: GateData


def split_for_gate(
    train: Sequence[TokenizedExample], validation: Sequence[TokenizedExample] | None, seed: int
) -> GateSplit:
    """Choose the gate's data: the validation examples; else a slice held out of training; else the training text.

    The slice is a tenth of the usable examples, at least 1 and at most 32, and is carved only out of 10 or more. It
    depends on `seed` and the number of examples alone. Examples in which no position counts are on neither side.
    """
    usable = [e for e in train if any(e.loss_mask)]
    judged = [e for e in validation or () if any(e.loss_mask)]
    if judged:
        return GateSplit(usable, judged, "validation_file")
    if len(usable) < MIN_EXAMPLES_TO_HOLD_OUT:
        return GateSplit(usable, usable, "training_text")
    size = min(MAX_HELD_OUT, max(1, int(len(usable) * HELD_OUT_FRACTION)))
    generator = torch.Generator().manual_seed(seed)
    held = set(torch.randperm(len(usable), generator=generator)[:size].tolist())
    return GateSplit(
        [e for i, e in enumerate(usable) if i not in held], [e for i, e in enumerate(usable) if i in held], "held_out"
    )


def perplexity(nll: float, tokens: int) -> float:
    """Return exp(nll / tokens); inf where that overflows or nll is not finite."""
    mean = nll / tokens
    return math.exp(mean) if mean < 700 else math.inf


def regression(before: float, after: float, tolerance: float, source: GateData) -> str | None:
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
