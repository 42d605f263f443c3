"""Final hidden states of whole sequences, so many rows at a time: short ones packed together, a long one in chunks.

Knows the model and one slot number; what is made of the states is its callers' affair.

Legend: T rows of a window, D width.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from workers.models.batch import pack
from workers.models.cache import SequenceCache
from workers.models.language_model import LanguageModel


class Span(NamedTuple):
    """Tokens `start` to `stop` of one of the sequences, by its number."""

    sequence: int
    start: int
    stop: int


def spans_of(lengths: Sequence[int], max_tokens: int) -> Iterator[list[Span]]:
    """Yield windows of up to `max_tokens`; a sequence longer than that has windows of its own, a chunk in each."""
    window: list[Span] = []
    tokens = 0
    for number, length in enumerate(lengths):
        if window and tokens + length > max_tokens:
            yield window
            window, tokens = [], 0
        for start in range(0, length, max_tokens):
            if window and start:
                yield window
                window = []
            window.append(Span(number, start, min(start + max_tokens, length)))
        tokens += length
    if window:
        yield window


def hidden_by_window(
    model: LanguageModel, sequences: Sequence[Sequence[int]], slot: int, max_tokens: int
) -> Iterator[tuple[list[Span], Tensor]]:
    """Yield windows and their final normed hidden states [T, D]; the next one runs when it is asked for.

    No sequence may be empty.
    """
    cache: SequenceCache | None = None
    for spans in spans_of([len(ids) for ids in sequences], max_tokens):
        number, start, stop = spans[0]
        length = len(sequences[number])
        if stop - start == length:
            cache = None
        elif start == 0:
            cache = model.new_cache(length)
        yield spans, _hidden(model, sequences, spans, slot, cache)


@torch.no_grad()
def _hidden(
    model: LanguageModel, sequences: Sequence[Sequence[int]], spans: list[Span], slot: int, cache: SequenceCache | None
) -> Tensor:
    pieces = [sequences[span.sequence][span.start : span.stop] for span in spans]
    batch = pack(pieces, [slot] * len(spans), model.device, [span.start for span in spans])
    return model.hidden(batch, None if cache is None else [cache])
