"""A merged model as a tar of a Hugging Face directory. Knows that layout's files, and what they were read from."""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from workers.export.hf_config import config_json
from workers.export.merge import merged_weights
from workers.loading import LoadedBase
from workers.loading.architectures import ARCHITECTURES
from workers.lora.adapter import AdapterWeights

WEIGHTS = "model.safetensors"


def _stored(base: LoadedBase, adapter: AdapterWeights) -> Iterator[tuple[str, Tensor]]:
    """Yield the merged tensors under the names that the architecture's own files have."""
    restore = ARCHITECTURES[base.info.architecture].restore
    for name, tensor in merged_weights(base.model, adapter):
        yield from restore(base.model.config, name, tensor)


def _tokenizer_config(base: LoadedBase) -> dict[str, object]:
    tokenizer = Tokenizer.from_str(base.info.tokenizer_json)
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if base.info.chat_template is not None:
        config["chat_template"] = base.info.chat_template
    if base.info.bos_token_id is not None:
        config["bos_token"] = tokenizer.id_to_token(base.info.bos_token_id)
    if base.info.eos_token_ids:
        config["eos_token"] = tokenizer.id_to_token(base.info.eos_token_ids[0])
    return config


def _documents(base: LoadedBase) -> dict[str, str]:
    def pretty(value: object) -> str:
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"

    generation = {"bos_token_id": base.info.bos_token_id, "eos_token_id": base.info.eos_token_ids or None}
    return {
        "config.json": pretty(config_json(base)),
        "generation_config.json": pretty({name: value for name, value in generation.items() if value is not None}),
        "tokenizer.json": base.info.tokenizer_json,
        "tokenizer_config.json": pretty(_tokenizer_config(base)),
    }


def _entry(name: str, size: int) -> tarfile.TarInfo:
    """Return a member that says nothing of when and by whom it was written."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry


def write_hf_archive(base: LoadedBase, adapter: AdapterWeights, sink: BinaryIO) -> None:
    """Write the tar to `sink`; the weights pass through a temporary file."""
    with TemporaryDirectory() as directory, tarfile.open(fileobj=sink, mode="w|") as archive:
        path = Path(directory) / WEIGHTS
        save_file(dict(_stored(base, adapter)), path, metadata={"format": "pt"})
        for name, text in _documents(base).items():
            content = text.encode()
            archive.addfile(_entry(name, len(content)), io.BytesIO(content))
        with path.open("rb") as weights:
            archive.addfile(_entry(WEIGHTS, path.stat().st_size), weights)
