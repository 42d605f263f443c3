"""Tokenized examples as training windows of at most `seq_len` tokens. Knows no text, no model and no order.

A window is (token ids, loss mask of the same length); mask[t] = 1 where predicting token t counts. The first token of a
window has nothing before it, so it never counts.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.text.tokenize import TokenizedExample
from workers.training.errors import TrainingError


@dataclass(frozen=True)
class Window:
    """A run of tokens of one example, seen by the model on its own."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]

    @property
    def targets(self) -> int:
        """How many positions count."""
        return sum(self.loss_mask)

    @property
    def attends(self) -> bool:
        """Whether a position counts that is predicted from more than one token, so that attention has a choice."""
        return any(self.loss_mask[2:])


@dataclass(frozen=True)
class Dataset:
    """The windows of each usable example, in file order, and how many examples had nothing to learn."""

    examples: tuple[tuple[Window, ...], ...]
    dropped_examples: int


def split_windows(example: TokenizedExample, seq_len: int) -> list[Window]:
    """Cut an example into consecutive windows without overlap; those in which no position counts are left out."""
    windows = []
    for start in range(0, len(example.token_ids), seq_len):
        mask = (0, *example.loss_mask[start + 1 : start + seq_len])
        if any(mask):
            windows.append(Window(tuple(example.token_ids[start : start + seq_len]), mask))
    return windows


def build_dataset(examples: Sequence[TokenizedExample], seq_len: int) -> Dataset:
    """Return the windows of all examples; those without any are dropped and counted."""
    split = [tuple(split_windows(example, seq_len)) for example in examples]
    usable = tuple(windows for windows in split if windows)
    return Dataset(usable, len(split) - len(usable))


def flatten(examples: Iterable[Sequence[Window]]) -> tuple[Window, ...]:
    """Return the windows of all examples in one row."""
    return tuple(window for windows in examples for window in windows)


def count_tokens(windows: Iterable[Window]) -> int:
    """Return the tokens of all windows, counted by the loss or not."""
    return sum(len(w.token_ids) for w in windows)


def require_known_tokens(windows: Iterable[Window], vocab_size: int) -> None:
    """Raise TrainingError `unknown_token` for an id that the model has no row for: on a GPU it would end every run."""
    for window in windows:
        if min(window.token_ids) < 0 or max(window.token_ids) >= vocab_size:
            unknown = next(token for token in window.token_ids if not 0 <= token < vocab_size)
            raise TrainingError(
                "unknown_token", f"the tokenizer gave token {unknown}, but the base model has {vocab_size} tokens"
            )


def windows_sha256(windows: Iterable[Window]) -> str:
    """Return a digest of every token and mask, to tell one dataset from another."""
    digest = hashlib.sha256()
    for w in windows:
        digest.update(struct.pack(f"<q{len(w.token_ids)}q", len(w.token_ids), *w.token_ids) + bytes(w.loss_mask))
    return digest.hexdigest()
