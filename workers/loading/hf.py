"""Reads a Hugging Face directory: config, safetensors (whole or sharded), tokenizer, template."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor

from workers.loading.architectures import ARCHITECTURES
from workers.loading.architectures.base import Architecture, Json, LoadingError
from workers.loading.architectures.mamba_ssm import NAME as MAMBA_SSM_NAME
from workers.loading.architectures.mamba_ssm import is_mamba_ssm
from workers.loading.checkpoint import Checkpoint
from workers.loading.tokenizer_files import find_tokenizer
from workers.models.config import ModelConfig


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


def _architecture(config: Json) -> str:
    if is_mamba_ssm(config):
        return MAMBA_SSM_NAME
    names = config.get("architectures") or [config.get("model_type")]
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        raise LoadingError(f"config.json: architecture {names} is not supported, only {', '.join(ARCHITECTURES)}")
    return str(names[0])


def _files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return [directory / "model.safetensors"]
    names = sorted(set(_json(index).get("weight_map", {}).values()))
    if any(Path(name).name != name for name in names):
        raise LoadingError(f"{index}: a shard lies outside the directory")
    return [directory / name for name in names]


def _tensors(directory: Path, architecture: Architecture, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    for path in _files(directory):
        if not path.exists():
            pickled = path.with_name("pytorch_model.bin").exists()
            hint = "; pytorch_model.bin is a pickle, which is never read: convert it to safetensors" if pickled else ""
            raise LoadingError(f"{path} is missing{hint}")
        with safe_open(path, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 (not a mapping)
                # Buffers and a copy of the tied embedding, which some writers add.
                if name.endswith("rotary_emb.inv_freq") or (config.tied_head and name == f"{config.head}.weight"):
                    continue
                yield from architecture.rename(config, name, shard.get_tensor(name))


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
    name = _architecture(config)
    architecture = ARCHITECTURES[name]
    shape = architecture.read_config(config)
    generation = _json(directory / "generation_config.json", required=False)
    tokenizer_config = _json(directory / "tokenizer_config.json", required=False)
    text = find_tokenizer(directory, tokenizer_config)
    if text is None:
        raise LoadingError(f"{directory} holds neither tokenizer.json nor vocab.json and merges.txt")
    tokenizer = Tokenizer.from_str(text)
    bos = _token_ids(config.get("bos_token_id"), tokenizer_config.get("bos_token"), tokenizer)
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    return Checkpoint(
        architecture=name,
        config=shape,
        config_json=config,
        tensors=_tensors(directory, architecture, shape),
        tokenizer_json=text,
        chat_template=_chat_template(directory, tokenizer_config),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=_token_ids(eos, tokenizer_config.get("eos_token"), tokenizer),
    )
