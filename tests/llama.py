"""A Llama's shape from a few numbers, for tests that need no files."""

from workers.loading.architectures.llama import decoder_layer
from workers.models.config import AttentionSpec, MlpSpec, ModelConfig, plain_rope


def llama_config(
    *,
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    context_length: int,
    rope_theta: float,
    norm_eps: float = 1e-5,
    tied_head: bool = True,
) -> ModelConfig:
    attention, mlp = AttentionSpec(heads, kv_heads, head_dim), MlpSpec(intermediate_size)
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        context_length=context_length,
        norm_eps=norm_eps,
        layers=tuple(decoder_layer(i, attention, mlp) for i in range(layers)),
        tied_head=tied_head,
        rope=plain_rope(head_dim, rope_theta),
    )
