"""Qwen2ForCausalLM, with biases on queries, keys and values, and Qwen3ForCausalLM, with norms on queries and keys."""

from dataclasses import replace

from workers.loading.architectures.base import Architecture, Json, LoadingError, field
from workers.loading.architectures.llama import decoder, read_heads
from workers.loading.architectures.mistral import read_window
from workers.models.config import AttentionSpec, ModelConfig

KINDS = ("full_attention", "sliding_attention")


def _with_windows(config: Json, attention: AttentionSpec) -> ModelConfig:
    window = read_window(config) if config.get("use_sliding_window") else None
    windowed = replace(attention, window=window)
    kinds = config.get("layer_types")
    first = int(config.get("max_window_layers", 28))

    def attention_of(index: int) -> AttentionSpec:
        kind = KINDS[index >= first] if kinds is None else kinds[index]
        if kind not in KINDS:
            raise LoadingError(f"config.json: layer_types[{index}] {kind!r} is none of {', '.join(KINDS)}")
        return windowed if kind == "sliding_attention" else attention

    if kinds is not None and len(kinds) != field(config, "num_hidden_layers"):
        raise LoadingError(f"config.json: {len(kinds)} layer_types for {config['num_hidden_layers']} num_hidden_layers")
    return decoder(config, attention_of)


def read_qwen2(config: Json) -> ModelConfig:
    """Return the layers of a Qwen2. Raises LoadingError naming a field that is missing or not supported."""
    return _with_windows(config, AttentionSpec(*read_heads(config), qkv_bias=True))


def read_qwen3(config: Json) -> ModelConfig:
    """Return the layers of a Qwen3. Raises LoadingError naming a field that is missing or not supported."""
    bias, eps = bool(config.get("attention_bias", False)), float(field(config, "rms_norm_eps"))
    heads = AttentionSpec(*read_heads(config), qkv_bias=bias, output_bias=bias, qk_norm_eps=eps)
    return _with_windows(config, heads)


QWEN2 = Architecture(read_qwen2)
QWEN3 = Architecture(read_qwen3)
