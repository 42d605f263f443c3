"""LlamaForCausalLM."""

from workers.loading.architectures.base import Architecture, Json, LoadingError, field, require
from workers.models.config import AttentionSpec, LayerSpec, MlpSpec, ModelConfig, RopeSpec, SublayerSpec, plain_rope


def read_rope(config: Json, dim: int) -> RopeSpec:
    """Return the rotary positions of a config, for heads that turn `dim` dimensions."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise LoadingError(f"config.json: rope type {kind!r} is not supported, only default")
    if dim % 2:
        raise LoadingError(f"config.json: head_dim {dim} must be even for rotary positions")
    return plain_rope(dim, float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0))


def decoder_layer(index: int, attention: AttentionSpec, mlp: MlpSpec) -> LayerSpec:
    """Return attention and MLP under the names that Llama and its kin give them."""
    prefix = f"model.layers.{index}"
    return (
        SublayerSpec(f"{prefix}.input_layernorm", f"{prefix}.self_attn", attention),
        SublayerSpec(f"{prefix}.post_attention_layernorm", f"{prefix}.mlp", mlp),
    )


def read_attention(config: Json) -> AttentionSpec:
    """Return heads, key heads and head width."""
    heads = int(field(config, "num_attention_heads"))
    kv_heads = int(config.get("num_key_value_heads") or heads)
    if heads % kv_heads:
        raise LoadingError(f"config.json: {heads} heads cannot share {kv_heads} num_key_value_heads evenly")
    return AttentionSpec(heads, kv_heads, int(config.get("head_dim") or field(config, "hidden_size") // heads))


def read_config(config: Json) -> ModelConfig:
    """Return the layers of a Llama. Raises LoadingError naming a field that is missing or not supported."""
    for name, only in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        require(config, name, only)
    attention = read_attention(config)
    mlp = MlpSpec(int(field(config, "intermediate_size")))
    return ModelConfig(
        vocab_size=int(field(config, "vocab_size")),
        hidden_size=int(field(config, "hidden_size")),
        context_length=int(field(config, "max_position_embeddings")),
        norm_eps=float(field(config, "rms_norm_eps")),
        layers=tuple(decoder_layer(i, attention, mlp) for i in range(int(field(config, "num_hidden_layers")))),
        tied_head=bool(config.get("tie_word_embeddings", False)),
        rope=read_rope(config, attention.head_dim),
    )


LLAMA = Architecture(read_config)
