"""A tiny random Llama in an hf directory, made without transformers: a token for each printable ASCII character."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CHARACTERS = ["Ċ", "Ġ", *(chr(i) for i in range(33, 127))]
EOS = len(CHARACTERS)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": len(CHARACTERS) + 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": None,
    "eos_token_id": EOS,
}


def save_tiny_model(directory: Path, *, seed: int = 0) -> Path:
    """Write the model and its tokenizer; the same seed gives the same bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, scale: float) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * scale

    width, inner, keys = 32, 48, 16
    embedding = matrix(EOS + 2, width, 0.5)
    embedding[EOS:] = 0  # an untrained model hardly ever ends by itself
    tensors = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(width)}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": torch.ones(width),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(width),
            f"{prefix}.self_attn.q_proj.weight": matrix(width, width, 0.4),
            f"{prefix}.self_attn.k_proj.weight": matrix(keys, width, 0.4),
            f"{prefix}.self_attn.v_proj.weight": matrix(keys, width, 0.4),
            f"{prefix}.self_attn.o_proj.weight": matrix(width, width, 0.4),
            f"{prefix}.mlp.gate_proj.weight": matrix(inner, width, 0.4),
            f"{prefix}.mlp.up_proj.weight": matrix(inner, width, 0.4),
            f"{prefix}.mlp.down_proj.weight": matrix(width, inner, 0.4),
        }
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(CHARACTERS)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True), AddedToken("<|im_start|>", special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory
