"""Reads a Hugging Face directory of a LlamaForCausalLM: config, safetensors (whole or sharded), tokenizer, template."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor

from workers.loading.checkpoint import Checkpoint, LoadingError
from workers.models.config import ModelConfig

Json = dict[str, Any]


def _json(path: Path, *, required: bool = True) -> Json:
    if not path.exists() and not required:
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise LoadingError(f"{path}: not readable JSON: {error}") from error
    if not isinstance(value, dict):
        raise LoadingError(f"{path}: expected a JSON object")
    return value


def _rope_theta(config: Json) -> float:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise LoadingError(f"config.json: rope type {kind!r} is not supported, only default")
    return float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)


def _config(config: Json) -> ModelConfig:
    architectures = config.get("architectures") or [config.get("model_type")]
    if architectures != ["LlamaForCausalLM"]:
        raise LoadingError(f"config.json: architecture {architectures} is not supported, only LlamaForCausalLM")
    for name, only in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if config.get(name, only) != only:
            raise LoadingError(f"config.json: {name} {config[name]!r} is not supported, only {only!r}")
    try:
        heads = int(config["num_attention_heads"])
        return ModelConfig(
            vocab_size=int(config["vocab_size"]),
            hidden_size=int(config["hidden_size"]),
            intermediate_size=int(config["intermediate_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            context_length=int(config["max_position_embeddings"]),
            rope_theta=_rope_theta(config),
            norm_eps=float(config["rms_norm_eps"]),
            tied_head=bool(config.get("tie_word_embeddings", False)),
        )
    except KeyError as error:
        raise LoadingError(f"config.json: field {error.args[0]} is missing") from error


def _files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return [directory / "model.safetensors"]
    names = sorted(set(_json(index).get("weight_map", {}).values()))
    if any(Path(name).name != name for name in names):
        raise LoadingError(f"{index}: a shard lies outside the directory")
    return [directory / name for name in names]


def _tensors(directory: Path, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    for path in _files(directory):
        if not path.exists():
            raise LoadingError(f"{path} is missing")
        with safe_open(path, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 (not a mapping)
                # Buffers and a copy of the tied embedding, which some writers add.
                if name.endswith("rotary_emb.inv_freq") or (config.tied_head and name == "lm_head.weight"):
                    continue
                yield name, shard.get_tensor(name)


def _chat_template(directory: Path, tokenizer_config: Json) -> str | None:
    path = directory / "chat_template.jinja"
    if path.exists():
        return path.read_text("utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template


def _token_ids(value: Any, token: Any, tokenizer: Tokenizer) -> list[int]:
    """Return ids from a config's int or list, else from the tokenizer config's token (a string or an object)."""
    if value is not None:
        return [int(item) for item in (value if isinstance(value, list) else [value])]
    content = token.get("content") if isinstance(token, dict) else token
    found = tokenizer.token_to_id(content) if content else None
    return [] if found is None else [found]


def read_hf(directory: Path) -> Checkpoint:
    """Open a model directory. Raises LoadingError naming the file, field or tensor."""
    config = _json(directory / "config.json")
    shape = _config(config)
    generation = _json(directory / "generation_config.json", required=False)
    tokenizer_config = _json(directory / "tokenizer_config.json", required=False)
    path = directory / "tokenizer.json"
    if not path.exists():
        raise LoadingError(f"{path} is missing")
    text = path.read_text("utf-8")
    tokenizer = Tokenizer.from_str(text)
    bos = _token_ids(config.get("bos_token_id"), tokenizer_config.get("bos_token"), tokenizer)
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    return Checkpoint(
        config=shape,
        tensors=_tensors(directory, shape),
        tokenizer_json=text,
        chat_template=_chat_template(directory, tokenizer_config),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=_token_ids(eos, tokenizer_config.get("eos_token"), tokenizer),
    )
