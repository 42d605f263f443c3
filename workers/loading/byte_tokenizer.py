"""The tokenizer of a base model that comes without one: a token for each byte, and ChatML's two marks.

Knows no model; a vocabulary of VOCABULARY tokens or more has room for it. Token i is byte i.
"""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

START, END = "<|im_start|>", "<|im_end|>"
END_ID = 257
VOCABULARY = 258


def _letters() -> list[str]:
    """Return the character that stands for each byte: itself where it prints, else one from 256 on, in order."""
    prints = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in prints else chr(next(others)) for byte in range(256)]


def byte_tokenizer_json() -> str:
    """Return the tokenizer as JSON: any text has an encoding, and decoding gives it back."""
    tokenizer = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in enumerate(_letters())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in (START, END)])
    return tokenizer.to_str()
