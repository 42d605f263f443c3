"""Rebuilds a `tokenizer.json` from the vocabulary inside a GGUF file. Knows byte-level BPE and nothing of models."""

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from workers.loading.checkpoint import LoadingError

_CONTROL, _USER_DEFINED = 3, 4


def _pre_tokenizers() -> dict[str, pre_tokenizers.PreTokenizer]:
    bytes_and_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    return {"gpt-2": bytes_and_words, "smollm": pre_tokenizers.Sequence([digits, bytes_and_words])}


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    known = _pre_tokenizers()
    if pre not in known:
        raise LoadingError(f"tokenizer.ggml.pre {pre!r} is not supported, only {' and '.join(known)}")
    return known[pre]


def pre_tokenizer_names() -> dict[str, Any]:
    """Return how each supported `tokenizer.ggml.pre` is written in a tokenizer.json."""
    found = {}
    for name, pre in _pre_tokenizers().items():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre
        found[name] = json.loads(tokenizer.to_str())["pre_tokenizer"]
    return found


def tokenizer_json(
    *, model: str, pre: str, tokens: Sequence[str], token_types: Sequence[int], merges: Sequence[str]
) -> str:
    """Return the tokenizer as JSON. Raises LoadingError for a kind that is not byte-level BPE."""
    if model != "gpt2":
        raise LoadingError(f"tokenizer.ggml.model {model!r} is not supported, only gpt2 (byte-level BPE)")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, token_type in zip(tokens, token_types, strict=True)
            if token_type == kind
        ]
        tokenizer.add_special_tokens(added) if special else tokenizer.add_tokens(added)
    return tokenizer.to_str()
