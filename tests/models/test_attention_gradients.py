"""Every weight and target of attention with all its options, against finite differences."""

from dataclasses import replace

from tests.llama import llama_config
from tests.models.exactness import assert_every_target, assert_every_weight
from workers.loading.architectures.llama import decoder_layer
from workers.models.config import AttentionSpec, MlpSpec, ModelConfig, plain_rope

ATTENTION = AttentionSpec(2, 1, 6, rotary_dim=4, qkv_bias=True, output_bias=True, qk_norm_eps=1e-3, window=2, scale=0.3)


def _config() -> ModelConfig:
    plain = llama_config(
        vocab_size=11, hidden_size=5, intermediate_size=3, layers=0, heads=2, kv_heads=1, head_dim=6,
        context_length=32, rope_theta=100.0,
    )  # fmt: skip
    layers = decoder_layer(0, ATTENTION, MlpSpec(3, bias=True)), decoder_layer(1, ATTENTION, MlpSpec(2))
    return replace(plain, layers=layers, rope=plain_rope(4, 100.0))


def test_every_weight() -> None:
    assert_every_weight(_config())


def test_every_factor_of_every_target() -> None:
    assert_every_target(_config())
