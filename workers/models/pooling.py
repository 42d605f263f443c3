"""Embeddings: the mean of a sequence's final hidden states, scaled to length 1. Knows the model and one slot number.

Legend: T rows of a window, D width.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from workers.models.language_model import LanguageModel
from workers.models.windows import hidden_by_window


def embeddings_by_window(
    model: LanguageModel, sequences: Sequence[Sequence[int]], slot: int, max_tokens: int
) -> Iterator[list[tuple[int, Tensor]]]:
    """Yield, after each window of up to `max_tokens`, (number, vector [D]) of the sequences that ended in it.

    Vectors are float32, or float64 for a float64 model. No sequence may be empty.
    """
    begun_D: Tensor | None = None
    for spans, hidden_TD in hidden_by_window(model, sequences, slot, max_tokens):
        ended = []
        wide_TD = hidden_TD.to(torch.promote_types(hidden_TD.dtype, torch.float32))
        for span, rows_TD in zip(spans, wide_TD.split([s.stop - s.start for s in spans]), strict=True):
            sum_D = rows_TD.sum(0) if begun_D is None else begun_D + rows_TD.sum(0)
            begun_D = sum_D
            if span.stop == len(sequences[span.sequence]):
                # The sum's direction is the mean's.
                ended.append((span.sequence, normalize(sum_D, dim=0)))
                begun_D = None
        yield ended
