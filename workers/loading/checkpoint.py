"""What a reader hands over: the model's layers, its tensors one by one, and its tokenizer. Knows no file format."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from workers.loading.architectures.base import Json, LoadingError
from workers.models.config import ModelConfig
from workers.models.language_model import LanguageModel

__all__ = ["Checkpoint", "LoadingError", "copy_weights"]


@dataclass(frozen=True)
class Checkpoint:
    """`tensors` yields (tensor name, tensor) and is read once.

    `architecture` is Hugging Face's name; `config_json` the config.json the model came with, empty for other formats.
    """

    architecture: str
    config: ModelConfig
    tensors: Iterable[tuple[str, Tensor]]
    tokenizer_json: str
    chat_template: str | None
    bos_token_id: int | None
    eos_token_ids: list[int]
    config_json: Json = field(default_factory=dict)


def copy_weights(model: LanguageModel, tensors: Iterable[tuple[str, Tensor]], architecture: str) -> None:
    """Fill the model. Raises LoadingError for a tensor that is unknown, of another shape, or missing."""
    places = model.weights()
    for name, tensor in tensors:
        place = places.pop(name, None)
        if place is None:
            raise LoadingError(f"tensor {name} is unknown to {architecture}")
        if place.shape != tensor.shape:
            raise LoadingError(f"tensor {name} has shape {tuple(tensor.shape)}, expected {tuple(place.shape)}")
        place.base.copy_(tensor)
    if places:
        raise LoadingError(f"tensor {min(places)} is missing")
