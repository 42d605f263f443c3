"""The learning rate of each optimizer step. Knows step numbers only."""

import math

from app.contracts.training import Schedule

FINAL_FRACTION = 0.1


def learning_rate(step: int, *, total_steps: int, warmup_steps: int, peak: float, schedule: Schedule) -> float:
    """Return the rate of optimizer step `step` (from 1 to `total_steps`).

    Linear warm-up over `warmup_steps`, reaching `peak` at its last step. After it "constant" stays at `peak`, and
    "cosine" goes down half a cosine to 10 % of `peak` at the last step of the run. A warm-up as long as the run or
    longer is simply cut off by the end of the run.
    """
    if step <= warmup_steps:
        return peak * step / warmup_steps
    if schedule == "constant":
        return peak
    decay_steps = total_steps - max(warmup_steps, 1)
    progress = (step - max(warmup_steps, 1)) / decay_steps if decay_steps > 0 else 0.0
    return peak * (FINAL_FRACTION + (1 - FINAL_FRACTION) * (1 + math.cos(math.pi * progress)) / 2)
