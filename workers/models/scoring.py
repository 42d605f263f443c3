"""Negative log-likelihood of token sequences, packed many at a time. Knows the model and one slot number.

Legend: T rows of a window, D width.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from workers.models.language_model import LanguageModel
from workers.models.windows import Span, hidden_by_window

Scored = tuple[Sequence[int], Sequence[int]]


def target_rows(sequences: Sequence[Scored]) -> tuple[list[int], list[int], list[int]]:
    """Return, over the packed rows, those that predict a masked token, their targets, and each one's sequence.

    Row t predicts token t+1, so mask[t+1] decides; mask[0] has no row that predicts it and is not counted.
    """
    return _target_rows(sequences, [Span(number, 0, len(ids)) for number, (ids, _) in enumerate(sequences)])


def _target_rows(sequences: Sequence[Scored], spans: Sequence[Span]) -> tuple[list[int], list[int], list[int]]:
    rows, targets, owners = [], [], []
    first = 0
    for number, start, stop in spans:
        ids, mask = sequences[number]
        for t in range(start + 1, min(stop + 1, len(ids))):
            if mask[t]:
                rows.append(first + t - 1 - start)
                targets.append(ids[t])
                owners.append(number)
        first += stop - start
    return rows, targets, owners


@torch.no_grad()
def _score(model: LanguageModel, hidden_TD: Tensor, rows: list[int], targets: list[int], slot: int) -> list[float]:
    if not rows:
        return []
    index, targets_T = (torch.tensor(x, dtype=torch.long, device=model.device) for x in (rows, targets))
    nll: list[float] = model.nll(hidden_TD[index], targets_T, slot).tolist()
    return nll


def scores_by_window(
    model: LanguageModel, sequences: Sequence[Scored], slot: int, max_tokens: int
) -> Iterator[tuple[float, int]]:
    """Yield (sum of −log p in nats, tokens counted) of one window after the other, each of up to `max_tokens`."""
    for spans, hidden_TD in hidden_by_window(model, [ids for ids, _ in sequences], slot, max_tokens):
        rows, targets, _ = _target_rows(sequences, spans)
        yield sum(_score(model, hidden_TD, rows, targets, slot)), len(rows)


def sequence_nll(
    model: LanguageModel, sequences: Sequence[Scored], slot: int, max_tokens: int = 2048
) -> list[tuple[float, int]]:
    """Return (sum of −log p in nats, tokens counted) for each (ids, mask), running up to `max_tokens` at once."""
    sums, counts = [0.0] * len(sequences), [0] * len(sequences)
    for spans, hidden_TD in hidden_by_window(model, [ids for ids, _ in sequences], slot, max_tokens):
        rows, targets, owners = _target_rows(sequences, spans)
        for owner, nll in zip(owners, _score(model, hidden_TD, rows, targets, slot), strict=True):
            sums[owner] += nll
            counts[owner] += 1
    return list(zip(sums, counts, strict=True))
