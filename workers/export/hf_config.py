"""The config.json of an exported model: the one it came with, or a Llama's that came from a GGUF file."""

from workers.export.errors import ExportError
from workers.loading import LoadedBase
from workers.loading.architectures.base import Json
from workers.models.config import AttentionSpec, MlpSpec, ModelConfig


def rope_theta(config: ModelConfig) -> float:
    """Return θ of plain rotary positions, from their second frequency θ^(−2/dim)."""
    assert config.rope is not None
    return float(round(config.rope.inverse_frequencies[1] ** (-config.rope.dim / 2), 6))


def llama_parts(base: LoadedBase) -> tuple[AttentionSpec, MlpSpec]:
    """Return what all layers of a Llama share. Raises ExportError for any other architecture."""
    if base.info.architecture != "LlamaForCausalLM":
        raise ExportError(f"{base.info.architecture} has no place in this format, only LlamaForCausalLM")
    attention, mlp = (sublayer.mixer for sublayer in base.model.config.layers[0])
    assert isinstance(attention, AttentionSpec)
    assert isinstance(mlp, MlpSpec)
    return attention, mlp


def _llama(base: LoadedBase) -> Json:
    config = base.model.config
    attention, mlp = llama_parts(base)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": mlp.hidden,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": rope_theta(config),
        "tie_word_embeddings": config.tied_head,
        "hidden_act": "silu",
        "bos_token_id": base.info.bos_token_id,
        "eos_token_id": base.info.eos_token_ids,
    }


def config_json(base: LoadedBase) -> Json:
    """Return the config.json of the merged model, in the dtype that it is stored in."""
    return {**(base.config_json or _llama(base)), "dtype": base.info.dtype}
