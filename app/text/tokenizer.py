"""A tokenizer made from the `tokenizer.json` a worker registered; the work is done by the `tokenizers` library."""

from functools import lru_cache

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from app.contracts.base_models import BaseModelInfo


class TextTokenizer:
    """Encodes and decodes for one base model. Special tokens written in the text are recognised as such."""

    def __init__(self, tokenizer_json: str, bos_token_id: int | None, eos_token_ids: list[int]) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, without adding any."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str:
        """Return the text of one token, special tokens included."""
        return self._tokenizer.decode([token_id], skip_special_tokens=False)


class IncrementalDecoder:
    """Turns a stream of tokens into text, holding back characters whose bytes are incomplete."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer._tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token_id: int) -> str:
        """Return the text that `token_id` completes, possibly empty."""
        return self._stream.step(self._tokenizer, token_id) or ""


@lru_cache(maxsize=8)
def _cached(tokenizer_json: str, bos_token_id: int | None, eos_token_ids: tuple[int, ...]) -> TextTokenizer:
    return TextTokenizer(tokenizer_json, bos_token_id, list(eos_token_ids))


def tokenizer_for(info: BaseModelInfo) -> TextTokenizer:
    """Return the tokenizer of a base model; building one takes a moment, so the last few are kept."""
    return _cached(info.tokenizer_json, info.bos_token_id, tuple(info.eos_token_ids))
