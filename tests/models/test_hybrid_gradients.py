"""Every weight of a whole small hybrid of each family, and every adapter target on it, against finite differences."""

import pytest

from tests.models.exactness import assert_every_target, assert_every_weight
from workers.loading.architectures import ARCHITECTURES
from workers.models.config import ModelConfig

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


def _config(family: str) -> ModelConfig:
    return ARCHITECTURES[family].read_config(SIZES | FAMILIES[family])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight(family: str) -> None:
    assert_every_weight(_config(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_factor_and_delta_of_every_target(family: str) -> None:
    assert_every_target(_config(family))
