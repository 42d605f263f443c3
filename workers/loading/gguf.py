"""Reads GGUF files of the Llama architecture, dequantised. Knows the format's field and tensor names.

llama.cpp stores the rows of q and k with rotary pairs side by side; here they are put back in half-split order.

Legend: N rows, K columns, H heads.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor

from workers.loading.architectures.llama import decoder_layer
from workers.loading.checkpoint import Checkpoint, LoadingError
from workers.loading.gguf_tokenizer import tokenizer_json
from workers.models.config import AttentionSpec, MlpSpec, ModelConfig, plain_rope

TOP_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _half_split(weight_NK: Tensor, heads: int) -> Tensor:
    half_split_NK: Tensor = weight_NK.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
    return half_split_NK


def _tensors(reader: gguf.GGUFReader, heads: int, kv_heads: int) -> Iterator[tuple[str, Tensor]]:
    for entry in reader.tensors:
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", entry.name)
        if entry.name in TOP_TENSORS:
            name = TOP_TENSORS[entry.name]
        elif match and match[2] in LAYER_TENSORS:
            name = f"model.layers.{match[1]}.{LAYER_TENSORS[match[2]]}.weight"
        else:
            raise LoadingError(f"tensor {entry.name} is unknown to LlamaForCausalLM")
        weight = torch.from_numpy(gguf.dequantize(entry.data, entry.tensor_type).copy())
        if name.endswith("q_proj.weight"):
            weight = _half_split(weight, heads)
        elif name.endswith("k_proj.weight"):
            weight = _half_split(weight, kv_heads)
        yield name, weight


class _Fields:
    """The metadata of one file; a missing field is refused by name."""

    def __init__(self, reader: gguf.GGUFReader, path: Path) -> None:
        self._fields = reader.fields
        self._path = path

    def get(self, name: str, default: Any = None) -> Any:
        field = self._fields.get(name)
        return default if field is None else field.contents()

    def require(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise LoadingError(f"{self._path}: field {name} is missing")
        return value


def _config(fields: _Fields, tensor_names: set[str]) -> ModelConfig:
    scaling = fields.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise LoadingError(f"llama.rope.scaling.type {scaling!r} is not supported")
    heads, width = int(fields.require("llama.attention.head_count")), int(fields.require("llama.embedding_length"))
    attention = AttentionSpec(
        heads,
        int(fields.get("llama.attention.head_count_kv", heads)),
        int(fields.get("llama.attention.key_length", width // heads)),
    )
    mlp = MlpSpec(int(fields.require("llama.feed_forward_length")))
    return ModelConfig(
        vocab_size=len(fields.require("tokenizer.ggml.tokens")),
        hidden_size=width,
        context_length=int(fields.require("llama.context_length")),
        norm_eps=float(fields.require("llama.attention.layer_norm_rms_epsilon")),
        layers=tuple(decoder_layer(i, attention, mlp) for i in range(int(fields.require("llama.block_count")))),
        tied_head="output.weight" not in tensor_names,
        rope=plain_rope(attention.head_dim, float(fields.get("llama.rope.freq_base", 10000.0))),
    )


def read_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file. Raises LoadingError naming the file and what is not supported."""
    try:
        reader = gguf.GGUFReader(path)
    except (OSError, ValueError) as error:
        raise LoadingError(f"{path}: not a readable GGUF file: {error}") from error
    fields = _Fields(reader, path)
    architecture = fields.require("general.architecture")
    if architecture != "llama":
        raise LoadingError(f"{path}: architecture {architecture!r} is not supported, only llama")
    config = _config(fields, {entry.name for entry in reader.tensors})
    ends = [fields.get("tokenizer.ggml.eos_token_id"), fields.get("tokenizer.ggml.eot_token_id")]
    attention = config.layers[0][0].mixer
    assert isinstance(attention, AttentionSpec)
    return Checkpoint(
        architecture="LlamaForCausalLM",
        config=config,
        tensors=_tensors(reader, attention.heads, attention.kv_heads),
        tokenizer_json=tokenizer_json(
            model=fields.require("tokenizer.ggml.model"),
            pre=fields.get("tokenizer.ggml.pre", "default"),
            tokens=fields.require("tokenizer.ggml.tokens"),
            token_types=fields.require("tokenizer.ggml.token_type"),
            merges=fields.get("tokenizer.ggml.merges", []),
        ),
        chat_template=fields.get("tokenizer.chat_template"),
        bos_token_id=fields.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=sorted({int(token) for token in ends if token is not None}),
    )
