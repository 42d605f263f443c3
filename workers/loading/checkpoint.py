"""What a reader hands over: the model's shape, its tensors one by one, and its tokenizer. Knows no file format."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from workers.models.config import ModelConfig
from workers.models.language_model import LanguageModel


class LoadingError(ValueError):
    """A base model that cannot be loaded; the message names the file, field or tensor."""


@dataclass(frozen=True)
class Checkpoint:
    """`tensors` yields (Hugging Face tensor name, tensor) and is read once."""

    config: ModelConfig
    tensors: Iterable[tuple[str, Tensor]]
    tokenizer_json: str
    chat_template: str | None
    bos_token_id: int | None
    eos_token_ids: list[int]


def copy_weights(model: LanguageModel, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Fill the model. Raises LoadingError for a tensor that is unknown, of another shape, or missing."""
    places = model.weights()
    for name, tensor in tensors:
        place = places.pop(name, None)
        if place is None:
            raise LoadingError(f"tensor {name} is unknown to the Llama architecture")
        if place.shape != tensor.shape:
            raise LoadingError(f"tensor {name} has shape {tuple(tensor.shape)}, expected {tuple(place.shape)}")
        place.copy_(tensor)
    if places:
        raise LoadingError(f"tensor {min(places)} is missing")
