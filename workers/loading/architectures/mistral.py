"""MistralForCausalLM: a Llama whose tokens see a window of the latest ones."""

from workers.loading.architectures.base import Architecture, Json, LoadingError
from workers.loading.architectures.llama import decoder, read_heads
from workers.models.config import AttentionSpec, ModelConfig


def read_window(config: Json) -> int | None:
    """Return how many tokens a token sees, None for all. Raises LoadingError for none at all."""
    window = config.get("sliding_window")
    if window is not None and int(window) < 1:
        raise LoadingError(f"config.json: sliding_window {window} must be at least 1")
    return None if window is None else int(window)


def read_config(config: Json) -> ModelConfig:
    """Return the layers of a Mistral. Raises LoadingError naming a field that is missing or not supported."""
    if config.get("layer_types") is not None:
        raise LoadingError("config.json: layer_types is not supported, only one sliding_window for all layers")
    attention = AttentionSpec(*read_heads(config), window=read_window(config))
    return decoder(config, lambda _: attention)


MISTRAL = Architecture(read_config)
