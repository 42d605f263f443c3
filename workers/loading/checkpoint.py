"""What a reader hands over: the model's layers, its tensors one by one, and its tokenizer. Knows no file format."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from workers.kernels.quantized_weight import Kind
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


class _Quantizer:
    """Puts a group of linear modules into fewer bits as soon as all of their weights have been read."""

    def __init__(self, model: LanguageModel, kind: Kind | None) -> None:
        self._kind = kind
        groups = [group for sublayer in model.sublayers() for group in sublayer.mixer.groups()]
        self._group_of = {member.weight.name: group for group in groups for member in group.members}
        self._missing = {id(group): len(group.members) for group in groups}

    def filled(self, name: str) -> None:
        """Tell that a tensor has been read. Raises LoadingError for a value that does not fit the format."""
        group = self._group_of.get(name)
        if group is None or self._kind is None:
            return
        self._missing[id(group)] -= 1
        if self._missing[id(group)] == 0:
            try:
                group.quantize(self._kind)
            except ValueError as error:
                raise LoadingError(f"{self._kind}: {error}") from error


def copy_weights(
    model: LanguageModel, tensors: Iterable[tuple[str, Tensor]], architecture: str, kind: Kind | None = None
) -> None:
    """Fill the model; the linear modules are held in `kind`, each as soon as it is read.

    Raises LoadingError for a tensor that is unknown, of another shape, missing, or that does not fit `kind`.
    """
    places = model.weights()
    quantizer = _Quantizer(model, kind)
    for name, tensor in tensors:
        place = places.pop(name, None)
        if place is None:
            raise LoadingError(f"tensor {name} is unknown to {architecture}")
        if place.shape != tensor.shape:
            raise LoadingError(f"tensor {name} has shape {tuple(tensor.shape)}, expected {tuple(place.shape)}")
        place.base.copy_(tensor)
        quantizer.filled(name)
    if places:
        raise LoadingError(f"tensor {min(places)} is missing")
