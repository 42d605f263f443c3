"""Finds the tokenizer of a directory: `tokenizer.json`, or GPT-2's `vocab.json` and `merges.txt`. Knows no model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from workers.loading.architectures.base import LoadingError
from workers.loading.bpe_tokenizer import read_bpe


def find_tokenizer(directory: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """Return the tokenizer as JSON, or None where there is none. Raises LoadingError for one that cannot be used."""
    path = directory / "tokenizer.json"
    if path.exists():
        text = path.read_text("utf-8")
        try:
            Tokenizer.from_str(text)
        except Exception as error:  # the library raises no class of its own
            raise LoadingError(f"{path}: not a tokenizer: {error}") from error
        return text
    if (directory / "vocab.json").exists() and (directory / "merges.txt").exists():
        return read_bpe(directory, tokenizer_config)
    return None
