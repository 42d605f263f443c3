"""Configurations of the smallest models that have everything: attention, state-space layers, hybrids of each family."""

from dataclasses import replace

from tests.llama import llama_config
from workers.loading.architectures import ARCHITECTURES
from workers.loading.architectures.llama import decoder_layer
from workers.loading.architectures.mamba import backbone
from workers.models.config import AttentionSpec, Mamba2Spec, MambaSpec, MlpSpec, ModelConfig, plain_rope

ATTENTION = AttentionSpec(2, 1, 6, rotary_dim=4, qkv_bias=True, output_bias=True, qk_norm_eps=1e-3, window=2, scale=0.3)
MAMBA = MambaSpec(inner=6, state=3, conv_kernel=3, dt_rank=2)
FALCON = MambaSpec(inner=4, state=2, conv_kernel=2, dt_rank=2, norms="weightless", norm_eps=1e-3)
JAMBA_SPEC = MambaSpec(inner=4, state=2, conv_kernel=2, dt_rank=2, norms="weighted", norm_eps=1e-3, proj_bias=True)
MAMBA2_SPEC = Mamba2Spec(heads=4, head_dim=2, groups=2, state=3, conv_kernel=3, norm_eps=1e-5, norm_groups=2)
BAMBA = Mamba2Spec(heads=2, head_dim=3, groups=1, state=2, conv_kernel=2, norm_eps=1e-3, proj_bias=True)
SPECS = {"mamba": MAMBA, "falcon": FALCON, "jamba": JAMBA_SPEC, "mamba2": MAMBA2_SPEC, "bamba": BAMBA}
SIZES = {
    "vocab_size": 11,
    "hidden_size": 4,
    "intermediate_size": 3,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-3,
    "tie_word_embeddings": True,
}
MAMBA2 = {"mamba_expand": 1, "mamba_n_heads": 2, "mamba_d_head": 2, "mamba_d_state": 2, "mamba_d_conv": 2}
GRANITE = {
    "shared_intermediate_size": 2,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.4,
    "logits_scaling": 0.5,
}
JAMBA = {
    "head_dim": 2,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "mamba_expand": 1,
    "mamba_d_state": 2,
    "mamba_d_conv": 2,
    "mamba_dt_rank": 2,
}
FAMILIES = {
    "GraniteMoeHybridForCausalLM": MAMBA2 | GRANITE,
    "BambaForCausalLM": MAMBA2 | {"head_dim": 4, "attn_layer_indices": [1], "mlp_bias": True},
    "JambaForCausalLM": JAMBA,
}


def attention_config() -> ModelConfig:
    """Attention with all its options."""
    plain = llama_config(
        vocab_size=11, hidden_size=5, intermediate_size=3, layers=0, heads=2, kv_heads=1, head_dim=6,
        context_length=32, rope_theta=100.0,
    )  # fmt: skip
    layers = decoder_layer(0, ATTENTION, MlpSpec(3, bias=True)), decoder_layer(1, ATTENTION, MlpSpec(2))
    return replace(plain, layers=layers, rope=plain_rope(4, 100.0))


def state_space_config(kind: str) -> ModelConfig:
    """Two layers of one of SPECS."""
    sizes = {"vocab_size": 11, "hidden_size": 5, "num_hidden_layers": 2}
    return backbone(sizes, SPECS[kind], tied=True)


def hybrid_config(family: str) -> ModelConfig:
    """A layer of each kind of one of FAMILIES."""
    return ARCHITECTURES[family].read_config(SIZES | FAMILIES[family])
