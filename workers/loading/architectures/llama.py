"""LlamaForCausalLM, and what its kin share with it."""

from collections.abc import Callable

from workers.loading.architectures.base import Architecture, Json, LoadingError, field, require
from workers.loading.architectures.rope import read_rope, rotary_width
from workers.models.config import AttentionSpec, LayerSpec, MlpSpec, ModelConfig, SublayerSpec


def decoder_layer(index: int, attention: AttentionSpec, mlp: MlpSpec) -> LayerSpec:
    """Return attention and MLP under the names that Llama and its kin give them."""
    prefix = f"model.layers.{index}"
    return (
        SublayerSpec(f"{prefix}.input_layernorm", f"{prefix}.self_attn", attention),
        SublayerSpec(f"{prefix}.post_attention_layernorm", f"{prefix}.mlp", mlp),
    )


def read_heads(config: Json) -> tuple[int, int, int]:
    """Return query heads, key heads and head width. Raises LoadingError when the ones cannot share the others."""
    heads = int(field(config, "num_attention_heads"))
    kv_heads = int(config.get("num_key_value_heads") or heads)
    if heads % kv_heads:
        raise LoadingError(f"config.json: {heads} heads cannot share {kv_heads} num_key_value_heads evenly")
    return heads, kv_heads, int(config.get("head_dim") or field(config, "hidden_size") // heads)


def decoder(config: Json, attention_of: Callable[[int], AttentionSpec], *, mlp_bias: bool = False) -> ModelConfig:
    """Return the layers of a Llama, or of a kin that differs in the attention of layer i alone."""
    require(config, "hidden_act", "silu")
    head_dim = read_heads(config)[2]
    if rotary_width(config, head_dim) != head_dim:
        raise LoadingError("config.json: partial_rotary_factor is not supported, only whole heads turn")
    mlp = MlpSpec(int(field(config, "intermediate_size")), bias=mlp_bias)
    layers = tuple(decoder_layer(i, attention_of(i), mlp) for i in range(int(field(config, "num_hidden_layers"))))
    return ModelConfig(
        vocab_size=int(field(config, "vocab_size")),
        hidden_size=int(field(config, "hidden_size")),
        context_length=int(field(config, "max_position_embeddings")),
        norm_eps=float(field(config, "rms_norm_eps")),
        layers=layers,
        tied_head=bool(config.get("tie_word_embeddings", False)),
        rope=read_rope(config, head_dim),
    )


def read_config(config: Json) -> ModelConfig:
    """Return the layers of a Llama. Raises LoadingError naming a field that is missing or not supported."""
    bias = bool(config.get("attention_bias", False))
    attention = AttentionSpec(*read_heads(config), qkv_bias=bias, output_bias=bias)
    return decoder(config, lambda _: attention, mlp_bias=bool(config.get("mlp_bias", False)))


LLAMA = Architecture(read_config)
