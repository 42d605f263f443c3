"""Tokenized examples as training windows of at most `seq_len` tokens. Knows no text, no model and no order.

A window is (token ids, loss mask of the same length); mask[t] = 1 where predicting token t counts. The first token of a
window has nothing before it, so it never counts.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from app.text.tokenize import TokenizedExample


@dataclass(frozen=True)
class Window:
    """A run of tokens of one example, seen by the model on its own."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]

    @property
    def targets(self) -> int:
        """How many positions count."""
        return sum(self.loss_mask)


@dataclass(frozen=True)
class Dataset:
    """Windows in file order, and how many examples had nothing to learn and were left out."""

    windows: tuple[Window, ...]
    dropped_examples: int

    @property
    def tokens(self) -> int:
        """Tokens of all windows, counted or not."""
        return sum(len(w.token_ids) for w in self.windows)

    def sha256(self) -> str:
        """Return a digest of every token and mask, to tell one dataset from another."""
        digest = hashlib.sha256()
        for w in self.windows:
            digest.update(struct.pack(f"<q{len(w.token_ids)}q", len(w.token_ids), *w.token_ids) + bytes(w.loss_mask))
        return digest.hexdigest()


def split_windows(example: TokenizedExample, seq_len: int) -> list[Window]:
    """Cut an example into consecutive windows without overlap; those in which no position counts are left out."""
    windows = []
    for start in range(0, len(example.token_ids), seq_len):
        mask = (0, *example.loss_mask[start + 1 : start + seq_len])
        if any(mask):
            windows.append(Window(tuple(example.token_ids[start : start + seq_len]), mask))
    return windows


def build_dataset(examples: Sequence[TokenizedExample], seq_len: int) -> Dataset:
    """Return the windows of all examples."""
    split = [split_windows(example, seq_len) for example in examples]
    return Dataset(tuple(w for windows in split for w in windows), sum(not windows for windows in split))
