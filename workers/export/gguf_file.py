"""A merged Llama as one GGUF file, by the `gguf` library. Knows llama.cpp's names and its order of q and k rows.

Legend: N rows, K columns.
"""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

import gguf
import torch
from torch import Tensor

from workers.export.errors import ExportError
from workers.export.gguf_vocabulary import add_vocabulary
from workers.export.hf_config import llama_parts, rope_theta
from workers.export.merge import merged_weights
from workers.loading import LoadedBase
from workers.loading.gguf import LAYER_TENSORS, TOP_TENSORS
from workers.lora.adapter import AdapterWeights

_TOP = {ours: theirs for theirs, ours in TOP_TENSORS.items()}
_LAYER = {ours: theirs for theirs, ours in LAYER_TENSORS.items()}


def _side_by_side(weight_NK: Tensor, heads: int) -> Tensor:
    """Put the rows of rotary pairs beside each other, as llama.cpp has them."""
    paired_NK: Tensor = weight_NK.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
    return paired_NK


def _name(name: str) -> str:
    """Return a tensor's name in the file. Raises ExportError for one that the format's Llama does not have."""
    if name in _TOP:
        return _TOP[name]
    index, _, rest = name.removeprefix("model.layers.").partition(".")
    part = _LAYER.get(rest.removesuffix(".weight"))
    if part is None or not rest.endswith(".weight"):
        raise ExportError(f"tensor {name} has no place in a GGUF of a Llama")
    return f"blk.{index}.{part}.weight"


def _values(name: str, tensor: Tensor, heads: int, kv_heads: int) -> Tensor:
    if name.endswith("q_proj.weight"):
        tensor = _side_by_side(tensor, heads)
    elif name.endswith("k_proj.weight"):
        tensor = _side_by_side(tensor, kv_heads)
    return tensor.contiguous()


def _add_tensor(writer: gguf.GGUFWriter, name: str, tensor: Tensor) -> None:
    if tensor.dtype == torch.bfloat16 and tensor.ndim > 1:
        raw = tensor.view(torch.int16).numpy().view("uint8")
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        # Vectors are float32 in every GGUF.
        writer.add_tensor(name, tensor.float().numpy())


def write_gguf(base: LoadedBase, adapter: AdapterWeights, sink: BinaryIO) -> None:
    """Write the file to `sink`; it passes through a temporary one. Raises ExportError for what is no plain Llama."""
    attention, mlp = llama_parts(base)
    config = base.model.config
    plain = base.config_json.get("rope_scaling") or base.config_json.get("rope_parameters") or {}
    if plain.get("rope_type", plain.get("type", "default")) != "default":
        raise ExportError(f"rotary positions of type {plain.get('rope_type', plain.get('type'))} cannot be written")
    with TemporaryDirectory() as directory:
        path = Path(directory) / "model.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_name(base.info.id)
        writer.add_context_length(config.context_length)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(len(config.layers))
        writer.add_feed_forward_length(mlp.hidden)
        writer.add_head_count(attention.heads)
        writer.add_head_count_kv(attention.kv_heads)
        writer.add_key_length(attention.head_dim)
        writer.add_value_length(attention.head_dim)
        writer.add_rope_dimension_count(attention.head_dim)
        writer.add_rope_freq_base(rope_theta(config))
        writer.add_layer_norm_rms_eps(config.norm_eps)
        writer.add_vocab_size(config.vocab_size)
        add_vocabulary(writer, base.info, json.loads(base.info.tokenizer_json))
        for name, tensor in merged_weights(base.model, adapter):
            _add_tensor(writer, _name(name), _values(name, tensor, attention.heads, attention.kv_heads))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with path.open("rb") as file:
            shutil.copyfileobj(file, sink, 1 << 20)
