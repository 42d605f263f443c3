"""GraniteMoeHybridForCausalLM: Mamba-2 and attention, each followed by an MLP, with routed experts beside it or not."""

from workers.loading.architectures.base import Architecture, Json, LoadingError, field, require
from workers.loading.architectures.hybrid import read_mamba2
from workers.loading.architectures.llama import read_heads
from workers.loading.architectures.rope import read_rope
from workers.models.config import AttentionSpec, LayerSpec, MlpSpec, ModelConfig, MoeSpec, SublayerSpec

MAMBA, ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")
"""Names of the kinds of layers, older ones first."""
POSITIONS = (None, "nope", "rope")


def _kinds(config: Json) -> list[str]:
    kinds = config.get("layer_types") or field(config, "layers_block_type")
    if len(kinds) != field(config, "num_hidden_layers"):
        raise LoadingError(f"config.json: {len(kinds)} layer_types for {config['num_hidden_layers']} num_hidden_layers")
    for index, kind in enumerate(kinds):
        if kind not in MAMBA + ATTENTION:
            raise LoadingError(f"config.json: layer_types[{index}] {kind!r} is none of {', '.join(MAMBA + ATTENTION)}")
    return list(kinds)


def _multiplier(config: Json, name: str) -> float:
    value = config.get(name)
    return 1.0 if value is None else float(value)


def _feed_forward(config: Json, prefix: str) -> SublayerSpec:
    norm, experts = f"{prefix}.post_attention_layernorm", int(field(config, "num_local_experts"))
    shared = MlpSpec(
        int(field(config, "shared_intermediate_size")), ("shared_mlp.input_linear",), "shared_mlp.output_linear"
    )
    if not experts:
        return SublayerSpec(norm, prefix, shared)
    top_k = int(field(config, "num_experts_per_tok"))
    if not 1 <= top_k <= experts:
        raise LoadingError(f"config.json: num_experts_per_tok {top_k} of {experts} num_local_experts cannot be chosen")
    moe = MoeSpec(
        hidden=int(field(config, "intermediate_size")),
        experts=experts,
        top_k=top_k,
        gates="selected",
        router="block_sparse_moe.router.layer.weight",
        gate_up=("block_sparse_moe.input_linear.weight",),
        down="block_sparse_moe.output_linear.weight",
        shared=shared,
    )
    return SublayerSpec(norm, prefix, moe)


def read_config(config: Json) -> ModelConfig:
    """Return the layers. Raises LoadingError naming a field that is missing or not supported."""
    require(config, "hidden_act", "silu")
    require(config, "normalization_function", "rmsnorm")
    position = config.get("position_embedding_type")
    if position not in POSITIONS:
        raise LoadingError(f"config.json: position_embedding_type {position!r} is not supported, only nope and rope")
    heads, bias, rotary = read_heads(config), bool(config.get("attention_bias", False)), position == "rope"
    scale = _multiplier(config, "attention_multiplier")
    attention = AttentionSpec(*heads, rotary=rotary, qkv_bias=bias, output_bias=bias, scale=scale)
    mamba = read_mamba2(config)

    def layer(index: int, kind: str) -> LayerSpec:
        prefix = f"model.layers.{index}"
        place, mixer = ("mamba", mamba) if kind in MAMBA else ("self_attn", attention)
        first = SublayerSpec(f"{prefix}.input_layernorm", f"{prefix}.{place}", mixer)
        return first, _feed_forward(config, prefix)

    return ModelConfig(
        vocab_size=int(field(config, "vocab_size")),
        hidden_size=int(field(config, "hidden_size")),
        context_length=int(field(config, "max_position_embeddings")),
        norm_eps=float(field(config, "rms_norm_eps")),
        layers=tuple(layer(i, kind) for i, kind in enumerate(_kinds(config))),
        tied_head=bool(config.get("tie_word_embeddings", False)),
        rope=read_rope(config, heads[2]) if rotary else None,
        embedding_multiplier=_multiplier(config, "embedding_multiplier"),
        residual_multiplier=_multiplier(config, "residual_multiplier"),
        logits_divisor=_multiplier(config, "logits_scaling"),
    )


GRANITE_MOE_HYBRID = Architecture(read_config)
