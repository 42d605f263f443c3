"""BambaForCausalLM: Mamba-2 with some layers of attention that turn a part of each head, an MLP after each."""

from workers.loading.architectures.base import Architecture, Json, LoadingError, field, require
from workers.loading.architectures.hybrid import read_mamba2, read_stack
from workers.loading.architectures.llama import read_heads
from workers.loading.architectures.rope import read_rope, rotary_width
from workers.models.config import AttentionSpec, MlpSpec, ModelConfig

TURNED = 0.5
"""The part of a head that turns where the config does not say."""


def _rotary_dim(config: Json, head_dim: int) -> int:
    named = config.get("attn_rotary_emb")
    width = rotary_width(config, head_dim, TURNED)
    if named is not None and int(named) != width:
        raise LoadingError(f"config.json: attn_rotary_emb {named} is not the {width} that partial_rotary_factor makes")
    return width


def _attention_layers(config: Json) -> set[int]:
    indices = set(config.get("attn_layer_indices") or ())
    beyond = indices - set(range(int(field(config, "num_hidden_layers"))))
    if beyond:
        raise LoadingError(f"config.json: attn_layer_indices names layer {min(beyond)}, which the model does not have")
    return indices


def read_config(config: Json) -> ModelConfig:
    """Return the layers. Raises LoadingError naming a field that is missing or not supported."""
    require(config, "hidden_act", "silu")
    heads, bias = read_heads(config), bool(config.get("attention_bias", False))
    rotary_dim = _rotary_dim(config, heads[2])
    attention = AttentionSpec(*heads, rotary_dim=rotary_dim, qkv_bias=bias, output_bias=bias)
    mlp = MlpSpec(int(field(config, "intermediate_size")), bias=bool(config.get("mlp_bias", False)))
    attends, rope = _attention_layers(config), read_rope(config, rotary_dim)
    return read_stack(config, read_mamba2(config), attention, attends, lambda _: mlp, rope=rope)


BAMBA = Architecture(read_config)
