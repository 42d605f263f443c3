"""An adapter as plain tensors: low-rank factors by module name, dense ones by tensor name.

Knows no slots, files or training.

LoRA (Hu et al. 2021): weight + scale · B A, with A [R, K] drawn at random and B [N, R] zero, so that a new adapter
changes nothing. Legend: R rank, K inputs, N outputs.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from app.contracts.base_models import ModuleShape
from app.contracts.targets import clamped_rank
from app.contracts.training import LoRAConfig


@dataclass(frozen=True)
class AdapterWeights:
    """Factors (A_RK, B_NR) float32 on the CPU and the scale of each module; `rank` is the nominal one.

    The embedding is a module too: A [R, D], B [V, R]. `dense` holds deltas by tensor name, `own` whole tensors that
    stand in the base's place (mode `full`); both float32 on the CPU.
    """

    tensors: dict[str, tuple[Tensor, Tensor]]
    scales: dict[str, float]
    alpha: float
    rank: int
    targets: list[str]
    dense: dict[str, Tensor] = field(default_factory=dict)
    own: dict[str, Tensor] = field(default_factory=dict)


class UnknownTargetError(ValueError):
    """A target names no module of the base model."""


def target_modules(modules: Mapping[str, ModuleShape], targets: list[str]) -> list[str]:
    """Return the modules whose last name part is a target. Raises UnknownTargetError naming the one that has none."""
    suffixes = {name: name.rpartition(".")[2] for name in modules}
    for target in targets:
        if target not in suffixes.values():
            known = ", ".join(sorted(set(suffixes.values())))
            raise UnknownTargetError(f"target {target!r} matches no module of the base model; it has {known}")
    return [name for name, suffix in suffixes.items() if suffix in targets]


def _generator(seed: int, module: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{module}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


def init_adapter(modules: Mapping[str, ModuleShape], config: LoRAConfig) -> AdapterWeights:
    """Return a fresh adapter: A ~ N(0, 1/K) from a generator of the seed and the module's name, B = 0.

    The rank is clamped to min(N, K) for each module, and its scale is alpha over the clamped rank.
    """
    return init_modules({name: modules[name] for name in target_modules(modules, config.targets)}, config)


def init_modules(modules: Mapping[str, ModuleShape], config: LoRAConfig) -> AdapterWeights:
    """Return a fresh adapter of all of these modules, as `init_adapter` does of those that are targets."""
    tensors, scales = {}, {}
    for name, shape in modules.items():
        rank = clamped_rank(config.rank, shape)
        a_RK = torch.randn(rank, shape.in_features, generator=_generator(config.seed, name)) / shape.in_features**0.5
        tensors[name] = (a_RK, torch.zeros(shape.out_features, rank))
        scales[name] = config.alpha / rank
    return AdapterWeights(tensors, scales, config.alpha, config.rank, list(config.targets))


def count_parameters(adapter: AdapterWeights) -> int:
    """Return the number of trainable scalars."""
    low_rank = sum(a.numel() + b.numel() for a, b in adapter.tensors.values())
    return low_rank + sum(t.numel() for t in (*adapter.dense.values(), *adapter.own.values()))
