"""Whether a run fits into memory, estimated from its configuration before anything of it is loaded.

A run costs its parameters: masters, gradients, moments, the last good state and a snapshot on its way, 40 bytes a
scalar at the most. What the layers keep for the backward pass is the pass's, however many runs share it. Knows shapes
and configurations; the room there is, is told.
"""

from math import prod

from app.contracts.base_models import BaseModelInfo
from app.contracts.targets import clamped_rank
from app.contracts.training import JobConfig
from workers.models.language_model import LanguageModel
from workers.training.errors import TrainingError

BYTES_PER_SCALAR = 40
KEPT_TWICE = 2
"""A linear module's input and output are kept by itself and again, in another form, by what follows it."""


def trained_scalars(info: BaseModelInfo, config: JobConfig) -> int:
    """Return an upper bound of how many scalars a run in this configuration trains."""
    if config.mode == "full":
        return info.parameters
    if config.lora is None:
        return sum(prod(info.weights.get(name, [0])) for name in info.selective)
    count = 0
    for name, shape in info.modules.items():
        if name.rpartition(".")[2] in config.lora.targets:
            count += clamped_rank(config.lora.rank, shape) * (shape.in_features + shape.out_features)
    if info.embedding.rpartition(".")[2] in config.lora.targets:
        count += config.lora.rank * (info.vocab_size + info.hidden_size)
    return count + sum(prod(shape) for shape in info.tensors.values())


def run_bytes(info: BaseModelInfo, config: JobConfig) -> int:
    """Return what a run needs besides its share of a pass."""
    return BYTES_PER_SCALAR * trained_scalars(info, config)


def pass_bytes(model: LanguageModel, tokens: int) -> int:
    """Return what a training pass over `tokens` tokens keeps for its backward half."""
    widths = sum(module.in_features + module.out_features for module in model.linears().values())
    per_token = KEPT_TWICE * (widths + 2 * len(model.sublayers()) * model.config.hidden_size)
    return tokens * per_token * model.dtype.itemsize


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
