"""What a family's reader offers, and helpers that read config.json fields and refuse others by name."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from workers.models.config import ModelConfig

Json = dict[str, Any]


class LoadingError(ValueError):
    """A base model that cannot be loaded; the message names the file, field or tensor."""


def as_it_is(_config: ModelConfig, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensor under its own name."""
    yield name, tensor


@dataclass(frozen=True)
class Architecture:
    """`read_config` maps config.json to layers; `rename` maps a stored tensor to the model's own names and layouts.

    `rename` may yield several tensors, or none for a buffer that is not a weight. `restore` is the way back: a tensor
    of the model under the names and layouts that the architecture's own files have.
    """

    read_config: Callable[[Json], ModelConfig]
    rename: Callable[[ModelConfig, str, Tensor], Iterable[tuple[str, Tensor]]] = as_it_is
    restore: Callable[[ModelConfig, str, Tensor], Iterable[tuple[str, Tensor]]] = as_it_is


def field(config: Json, name: str) -> Any:
    """Return a required field. Raises LoadingError naming it."""
    if config.get(name) is None:
        raise LoadingError(f"config.json: field {name} is missing")
    return config[name]


def require(config: Json, name: str, only: object) -> None:
    """Raise LoadingError unless the field is absent, null or `only`."""
    if config.get(name) not in (None, only):
        raise LoadingError(f"config.json: {name} {config[name]!r} is not supported, only {only!r}")
