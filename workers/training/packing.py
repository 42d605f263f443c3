"""The order of training: which windows meet in which micro-batch and which micro-batches in which optimizer step.

An epoch's order is a pure function of (seed, epoch), so that a position in the plan is all the random state a run has.
Windows are packed end to end by the model, so a micro-batch wastes nothing on padding whatever their lengths are, and a
ragged tail needs no batch of its own. Similar lengths are put together all the same, within a micro-batch in ascending
order: layers compute neighbours of equal length as one, and micro-batches of one step stay even in cost. Strictly equal
lengths would make batches smaller than `batch_size`, and so change what is learnt, wherever lengths differ.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from workers.training.dataset import Window, count_tokens

LENGTH_POOL = 8
"""Micro-batches' worth of shuffled windows that are sorted by length together."""


@dataclass(frozen=True)
class StepPlan:
    """The micro-batches of one optimizer step and what they hold altogether."""

    micro_batches: tuple[tuple[Window, ...], ...]
    tokens: int
    targets: int
    """Positions that count: the step's loss is the mean over all of them."""
    attends: bool
    """Whether the step's data can give every parameter a gradient."""


def _permutation(n: int, seed: int, epoch: int, purpose: str) -> list[int]:
    digest = hashlib.sha256(f"{purpose}:{seed}:{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.randperm(n, generator=generator).tolist()


def steps_per_epoch(windows: int, batch_size: int, gradient_accumulation: int) -> int:
    """Return the number of optimizer steps; a ragged tail makes a smaller batch, not a lost one."""
    return -(-windows // (batch_size * gradient_accumulation))


def plan_epoch(
    windows: Sequence[Window], *, batch_size: int, gradient_accumulation: int, seed: int, epoch: int
) -> list[StepPlan]:
    """Return the optimizer steps of epoch `epoch`, each window in exactly one micro-batch of `batch_size` windows."""
    shuffled = [windows[i] for i in _permutation(len(windows), seed, epoch, "windows")]
    pool = LENGTH_POOL * batch_size
    ordered = [
        w
        for start in range(0, len(shuffled), pool)
        for w in sorted(shuffled[start : start + pool], key=lambda w: len(w.token_ids))
    ]
    batches = [tuple(ordered[i : i + batch_size]) for i in range(0, len(ordered), batch_size)]
    batches = [batches[i] for i in _permutation(len(batches), seed, epoch, "batches")]
    steps = []
    for start in range(0, len(batches), gradient_accumulation):
        group = tuple(batches[start : start + gradient_accumulation])
        members = [w for batch in group for w in batch]
        steps.append(
            StepPlan(group, count_tokens(members), sum(w.targets for w in members), any(w.attends for w in members))
        )
    return steps


def split_by_tokens(micro_batch: Sequence[Window], max_tokens: int) -> list[tuple[Window, ...]]:
    """Cut a micro-batch into parts of at most `max_tokens` tokens (a longer window stands alone).

    Bounds memory and the time until the caller is heard again; the summed gradient is the same.
    """
    parts: list[tuple[Window, ...]] = []
    size = max_tokens
    for window in micro_batch:
        size += len(window.token_ids)
        if size > max_tokens:
            parts.append(())
            size = len(window.token_ids)
        parts[-1] += (window,)
    return parts
