"""A byte-level BPE tokenizer.json as the vocabulary fields of a GGUF. Knows both forms and no model."""

from typing import Any

import gguf

from app.contracts.base_models import BaseModelInfo
from workers.export.errors import ExportError
from workers.loading.gguf_tokenizer import pre_tokenizer_names

Json = dict[str, Any]


def _pre(tokenizer: Json) -> str:
    """Return llama.cpp's name of the tokenizer's way to cut text into words."""
    known = pre_tokenizer_names()
    for name, content in known.items():
        if tokenizer.get("pre_tokenizer") == content:
            return name
    raise ExportError(f"the tokenizer's pre_tokenizer is none that can be written, only {', '.join(known)}")


def _merge(pair: str | list[str]) -> str:
    return pair if isinstance(pair, str) else " ".join(pair)


def add_vocabulary(writer: gguf.GGUFWriter, info: BaseModelInfo, tokenizer: Json) -> None:
    """Write tokens, types, merges and marks. Raises ExportError for a tokenizer that is not byte-level BPE."""
    model = tokenizer["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise ExportError(f"a tokenizer of type {model.get('type')} cannot be written, only byte-level BPE")
    names = {index: token for token, index in model["vocab"].items()}
    types = dict.fromkeys(names, gguf.TokenType.NORMAL)
    for added in tokenizer.get("added_tokens", []):
        names[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    # Rows of the embedding that no token has are named, for each row must have a name.
    rows = range(info.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pre(tokenizer))
    writer.add_token_list([names.get(row, f"[PAD{row}]") for row in rows])
    writer.add_token_types([types.get(row, gguf.TokenType.UNUSED) for row in rows])
    writer.add_token_merges([_merge(pair) for pair in model["merges"]])
    if info.bos_token_id is not None:
        writer.add_bos_token_id(info.bos_token_id)
    if info.eos_token_ids:
        writer.add_eos_token_id(info.eos_token_ids[0])
    if info.chat_template is not None:
        writer.add_chat_template(info.chat_template)
