"""Whether a run fits into memory, estimated from its configuration before anything of it is loaded.

A run costs its parameters: masters, gradients, moments, the last good state and a snapshot on its way, 40 bytes a
scalar at the most. What the layers keep for the backward pass is the pass's, however many runs share it. Knows shapes
and configurations; the room there is, is told.
"""

from math import prod

import torch

from app.contracts.base_models import BaseModelInfo
from app.contracts.targets import known_targets, low_rank_sizes, plan_targets, selective_shapes
from app.contracts.training import JobConfig
from workers.models.language_model import LanguageModel
from workers.training.errors import TrainingError

BYTES_PER_SCALAR = 40
KEPT_TWICE = 2
"""A linear module's input and output are kept by itself and again, in another form, by what follows it."""


def trained_scalars(info: BaseModelInfo, config: JobConfig) -> int:
    """Return how many scalars a run in this configuration trains; targets that the base lacks count nothing here."""
    if config.mode == "full":
        return info.parameters
    if config.lora is None:
        return sum(map(prod, selective_shapes(info).values()))
    known = known_targets(info)
    plan = plan_targets(info, [target for target in config.lora.targets if target in known])
    factors = sum(sum(low_rank_sizes(config.lora.rank, shape)) for shape in plan.modules.values())
    return factors + sum(map(prod, plan.tensors.values()))


def run_bytes(info: BaseModelInfo, config: JobConfig) -> int:
    """Return what a run needs besides its share of a pass."""
    return BYTES_PER_SCALAR * trained_scalars(info, config)


def pass_bytes(model: LanguageModel, tokens: int) -> int:
    """Return what a training pass over `tokens` tokens keeps for its backward half."""
    widths = sum(module.in_features + module.out_features for module in model.linears().values())
    stream = torch.promote_types(model.dtype, torch.float32) if model.config.wide_residual else model.dtype
    residual = 2 * len(model.sublayers()) * model.config.hidden_size
    return tokens * KEPT_TWICE * (widths * model.dtype.itemsize + residual * stream.itemsize)


class TrainingMemory:
    """The bytes that runs may take, and which runs take them. None for no limit."""

    def __init__(self, info: BaseModelInfo, capacity: int | None) -> None:
        self._info, self.capacity = info, capacity
        self._taken: dict[str, int] = {}

    @property
    def taken(self) -> int:
        """The estimate of all runs that are here."""
        return sum(self._taken.values())

    def fits(self, config: JobConfig) -> bool:
        """Whether a run fits beside those that are here. One that fits nowhere may come: it is told so."""
        if self.capacity is None or not self._taken:
            return True
        return self.taken + run_bytes(self._info, config) <= self.capacity

    def take(self, run: str, config: JobConfig) -> None:
        """Count a run in."""
        self._taken[run] = run_bytes(self._info, config)

    def free(self, run: str) -> None:
        """Count a run out; unknown runs are ignored."""
        self._taken.pop(run, None)

    def require(self, config: JobConfig) -> None:
        """Raise TrainingError `insufficient_memory` for a run that does not even fit alone."""
        needed = run_bytes(self._info, config)
        if self.capacity is not None and needed > self.capacity:
            raise TrainingError(
                "insufficient_memory",
                f"the run trains {trained_scalars(self._info, config):,} scalars and needs about {needed:,} bytes, "
                f"more than the {self.capacity:,} that this worker has for training; choose a lower rank, fewer "
                "targets or another mode",
            )
