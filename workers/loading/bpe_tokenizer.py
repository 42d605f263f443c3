"""Makes a `tokenizer.json` of a directory that has `vocab.json` and `merges.txt` instead (GPT-2's byte-level BPE).

Knows these files and nothing of models. A tokenizer class that cuts text in another way is refused: its ids would be
wrong without a sign.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from workers.loading.architectures.base import LoadingError

END_OF_TEXT = "<|endoftext|>"
"""Special in GPT-2 without any file saying so."""
_CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast", None)
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadingError(f"{path}: not readable: {error}") from error


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file that need not be there."""
    if not path.exists():
        return {}
    try:
        value = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise LoadingError(f"{path}: not readable JSON: {error}") from error
    if not isinstance(value, dict):
        raise LoadingError(f"{path}: expected a JSON object")
    return value


def _vocabulary(path: Path) -> dict[str, int]:
    vocabulary = _object(path)
    if not all(type(index) is int and index >= 0 for index in vocabulary.values()):
        raise LoadingError(f"{path}: expected an object of tokens and their ids")
    if len(set(vocabulary.values())) != len(vocabulary):
        raise LoadingError(f"{path}: two tokens have the same id")
    missing = [letter for letter in sorted(pre_tokenizers.ByteLevel.alphabet()) if letter not in vocabulary]
    if missing:
        raise LoadingError(f"{path}: {len(missing)} of 256 bytes have no token, the first is {missing[0]!r}")
    return vocabulary


def _merges(path: Path, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        parts = line.removesuffix("\r").split(" ")
        if len(parts) != 2:
            raise LoadingError(f"{path}, line {number}: expected two tokens and one space")
        for token in (*parts, "".join(parts)):
            if token not in vocabulary:
                raise LoadingError(f"{path}, line {number}: {token!r} is not in the vocabulary")
        merges.append((parts[0], parts[1]))
    return merges


def _added(token: Any, *, special: bool) -> AddedToken:
    """Return the token of a configuration: a string, or an object with its flags."""
    if isinstance(token, str):
        return AddedToken(token, special=special, normalized=False)
    flags = {flag: bool(token.get(flag, False)) for flag in ("single_word", "lstrip", "rstrip", "normalized")}
    return AddedToken(token["content"], special=bool(token.get("special", special)), **flags)


def _add_tokens(tokenizer: Tokenizer, directory: Path, tokenizer_config: Mapping[str, Any]) -> None:
    """Add what the vocabulary lacks and mark what is special. Raises LoadingError where an id comes out otherwise."""
    listed = {int(i): _added(t, special=False) for i, t in tokenizer_config.get("added_tokens_decoder", {}).items()}
    for content, index in _object(directory / "added_tokens.json").items():
        listed.setdefault(int(index), _added(content, special=False))
    names = {**_object(directory / "special_tokens_map.json"), **tokenizer_config}
    special = [names.get(role) for role in _ROLES] + list(names.get("additional_special_tokens") or ())
    if tokenizer.token_to_id(END_OF_TEXT) is not None:
        special.append(END_OF_TEXT)
    for index, token in sorted(listed.items()):
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        if tokenizer.token_to_id(token.content) != index:
            raise LoadingError(f"{directory}: added token {token.content!r} cannot have the id {index}")
    tokenizer.add_special_tokens([_added(token, special=True) for token in special if token is not None])


def read_bpe(directory: Path, tokenizer_config: Mapping[str, Any]) -> str:
    """Return the tokenizer as JSON. Raises LoadingError naming the file, and the line or field at fault."""
    kind = tokenizer_config.get("tokenizer_class")
    if kind not in _CLASSES:
        raise LoadingError(
            f"tokenizer_config.json: tokenizer_class {kind!r} needs a tokenizer.json, only GPT2Tokenizer"
        )
    vocabulary = _vocabulary(directory / "vocab.json")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=_merges(directory / "merges.txt", vocabulary)))
    prefix = bool(tokenizer_config.get("add_prefix_space", False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, directory, tokenizer_config)
    return tokenizer.to_str()
