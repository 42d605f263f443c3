"""What tensors are called in an adapter file: PEFT's names for what PEFT knows, our own prefix for the rest."""

from collections.abc import Iterable, Mapping
from math import prod

from app.contracts.base_models import BaseModelInfo
from app.contracts.targets import EMBEDDINGS, selective_shapes, tensor_target

PREFIX = "base_model.model."
DELTA_PREFIX = "graft.delta."
"""Before a base tensor's name: what is added to that tensor. PEFT passes such tensors over."""


def linear_keys(module: str) -> tuple[str, str]:
    """Return the names of a linear module's A [R, K] and B [N, R]."""
    return f"{PREFIX}{module}.lora_A.weight", f"{PREFIX}{module}.lora_B.weight"


def embedding_keys(module: str) -> tuple[str, str]:
    """Return the names of an embedding's pair [R, V] and [D, R]: PEFT keeps it the other way round than a linear's."""
    return f"{PREFIX}{module}.lora_embedding_A", f"{PREFIX}{module}.lora_embedding_B"


def twin_keys(info: BaseModelInfo) -> dict[str, str]:
    """Return a tied head's tensors and, for each, the embedding's tensor that it must be the transpose of.

    PEFT computes lookup and tied head from a pair each, so both are written, although they are one.
    """
    if not info.tied_head:
        return {}
    head_a, head_b = linear_keys(info.tied_head)
    embedding_a, embedding_b = embedding_keys(info.embedding)
    return {head_a: embedding_b, head_b: embedding_a}


def base_copies(info: BaseModelInfo) -> dict[str, tuple[int, ...]]:
    """Return what PEFT saves of the base when an embedding is adapted: frozen, so it says nothing new."""
    names = filter(None, (info.embedding, info.tied_head))
    return {f"{PREFIX}{name}.base_layer.weight": (info.vocab_size, info.hidden_size) for name in names}


def delta_shapes(info: BaseModelInfo) -> dict[str, tuple[int, ...]]:
    """Return the base tensors that a delta may be added to, with their shapes."""
    return {name: tuple(shape) for name, shape in (info.tensors | selective_shapes(info)).items()}


def targets_of(keys: Iterable[str], info: BaseModelInfo) -> list[str]:
    """Return the targets that a file's low-rank tensors and deltas stand for, in the file's order."""
    named = {info.embedding: EMBEDDINGS, info.tied_head: EMBEDDINGS}
    targets = []
    for key in keys:
        module = key.removeprefix(PREFIX).rpartition(".lora_")[0]
        if key.startswith(DELTA_PREFIX):
            targets.append(tensor_target(key.removeprefix(DELTA_PREFIX)))
        elif module:
            targets.append(named.get(module, module.rpartition(".")[2]))
    return list(dict.fromkeys(targets))


def trainable_scalars(shapes: Mapping[str, tuple[int, ...]], info: BaseModelInfo) -> int:
    """Return how many numbers a file adds or replaces; a tied head's twin and copies of the base are none."""
    skipped = {*twin_keys(info), *base_copies(info)}
    return sum(prod(shape) for name, shape in shapes.items() if name not in skipped)
