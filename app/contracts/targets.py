"""What a target name stands for in a base model: linear modules, the embedding, or tensors that carry dense deltas.

A target is the last name part of a module (`q_proj`), `embeddings`, or a state-space parameter (`A_log`, `D`,
`dt_bias`, `conv1d`). Knows names and shapes; shared by the service, which checks wishes, and by workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from app.contracts.base_models import BaseModelInfo, ModuleShape

EMBEDDINGS = "embeddings"
ALIASES = {
    "wInProj": "in_proj",
    "wXProj": "x_proj",
    "wDtProj": "dt_proj",
    "wOutProj": "out_proj",
    "wConv": "conv1d",
    "embedding": EMBEDDINGS,
}


class UnknownTargetError(ValueError):
    """`target` stands for nothing in the base model; the message lists what does."""

    def __init__(self, target: str, model: str, known: Sequence[str]) -> None:
        super().__init__(f"{target!r} is no target of {model}; it has {', '.join(known)}")
        self.target = target


@dataclass(frozen=True)
class TargetPlan:
    """What is adapted: modules by low-rank factors (the embedding among them), tensors by dense deltas."""

    modules: dict[str, ModuleShape]
    tensors: dict[str, list[int]]


def tensor_target(name: str) -> str:
    """Return the target that a dense tensor answers to; the step's bias has one name in all state-space layers."""
    module, _, last = name.rpartition(".")
    owner = module.rpartition(".")[2]
    if owner == "dt_proj" and last == "bias":
        return "dt_bias"
    return owner if last in {"weight", "bias"} else last


def embedding_shape(info: BaseModelInfo) -> ModuleShape:
    """Return the embedding as a module: B has a row for each token, A a column for each dimension."""
    return ModuleShape(out_features=info.vocab_size, in_features=info.hidden_size)


def known_targets(info: BaseModelInfo) -> list[str]:
    """Return every target of a base model: modules in its order, the embedding, dense tensors."""
    names = [name.rpartition(".")[2] for name in info.modules]
    names += [EMBEDDINGS] if info.embedding else []
    return list(dict.fromkeys([*names, *map(tensor_target, info.tensors)]))


def canonical_targets(info: BaseModelInfo, wanted: Sequence[str]) -> list[str]:
    """Return each target once under the base model's own name. Raises UnknownTargetError."""
    known = known_targets(info)
    chosen: list[str] = []
    for name in wanted:
        target = name if name in known else ALIASES.get(name, name)
        if info.embedding and target == info.embedding.rpartition(".")[2]:
            target = EMBEDDINGS
        if target not in known:
            raise UnknownTargetError(name, info.id, known)
        chosen.append(target)
    return list(dict.fromkeys(chosen))


def plan_targets(info: BaseModelInfo, targets: Sequence[str]) -> TargetPlan:
    """Return what `targets` stand for, in the base model's order. Raises UnknownTargetError."""
    chosen = set(canonical_targets(info, targets))
    modules = {name: shape for name, shape in info.modules.items() if name.rpartition(".")[2] in chosen}
    if EMBEDDINGS in chosen:
        modules[info.embedding] = embedding_shape(info)
    return TargetPlan(modules, {name: shape for name, shape in info.tensors.items() if tensor_target(name) in chosen})


def selective_shapes(info: BaseModelInfo) -> dict[str, list[int]]:
    """Return the tensors of the selective projection, which mode `wsla` trains, with their shapes."""
    shapes = {f"{name}.weight": [shape.out_features, shape.in_features] for name, shape in info.modules.items()}
    shapes |= {f"{name}.bias": [shape.out_features] for name, shape in info.modules.items()}
    return {name: (info.tensors | shapes)[name] for name in info.selective}


def clamped_rank(rank: int, shape: ModuleShape) -> int:
    """Return the rank that a module gets: no more than its smaller side."""
    return min(rank, shape.out_features, shape.in_features)


def low_rank_sizes(rank: int, shape: ModuleShape) -> tuple[int, int]:
    """Return the scalars of A and of B at the module's clamped rank."""
    r = clamped_rank(rank, shape)
    return r * shape.in_features, r * shape.out_features


def scalars(shape: Sequence[int]) -> int:
    """Return how many scalars a tensor of this shape has."""
    return prod(shape)
