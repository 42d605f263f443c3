"""The trust region: no trained scalar moves further than `max_delta` in one optimizer step, whatever the gradient.

Knows weights and proposed updates only; AdamW hands it the whole update, weight decay included. After the idea of
WSLA's `maxDelta`: small bounded steps keep repeated adaptation of a live model stable.
"""

import torch
from torch import Tensor


def _bound(max_delta: float, like: Tensor) -> float:
    """Return the largest value of `like`'s dtype that is not above `max_delta`."""
    bound = torch.tensor(max_delta, dtype=like.dtype)
    if float(bound) > max_delta:
        bound = torch.nextafter(bound, torch.zeros_like(bound))
    return float(bound)


def _below(values: Tensor, bound: float) -> bool:
    """Return whether all values are nearer to 0 than `bound`; NaN is not."""
    if not values.numel():
        return True
    low, high = torch.aminmax(values)
    return float(low) > -bound and float(high) < bound


def apply_delta(weight: Tensor, delta: Tensor, max_delta: float) -> tuple[Tensor, int]:
    """Return the weight after a bounded step, and how many scalars the bound held back.

    |new - old| <= max_delta holds exactly for the stored values, in the dtype of `weight`: where rounding the sum would
    overshoot the bound, the neighbouring representable value towards `old` is taken, which is within it. A `max_delta`
    of 0 leaves the step unbounded. A NaN in `delta` stays NaN, for the caller's guard to see.
    """
    if max_delta == 0:
        return weight + delta, 0
    bound = _bound(max_delta, weight)
    if _below(delta, bound):
        new = weight + delta
        # A difference that rounds to less than the bound is less than it.
        if _below(new - weight, bound):
            return new, 0
    clamped = int((delta.abs() > bound).sum())
    new = weight + delta.clamp(-bound, bound)
    overshoot = (new.double() - weight.double()).abs() > max_delta
    if bool(overshoot.any()):
        new = torch.where(overshoot, torch.nextafter(new, weight), new)
    return new, clamped
