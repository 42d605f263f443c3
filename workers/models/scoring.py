"""Negative log-likelihood of token sequences, packed many at a time. Knows the model and one slot number.

Legend: T rows of a batch.
"""

from collections.abc import Iterator, Sequence

import torch

from workers.models.batch import pack
from workers.models.language_model import LanguageModel

Scored = tuple[Sequence[int], Sequence[int]]


def _windows(sequences: Sequence[Scored], max_tokens: int) -> Iterator[list[Scored]]:
    window: list[Scored] = []
    tokens = 0
    for ids, mask in sequences:
        if window and tokens + len(ids) > max_tokens:
            yield window
            window, tokens = [], 0
        window.append((ids, mask))
        tokens += len(ids)
    if window:
        yield window


def target_rows(sequences: Sequence[Scored]) -> tuple[list[int], list[int], list[int]]:
    """Return, over the packed rows, those that predict a masked token, their targets, and each one's sequence.

    Row t predicts token t+1, so mask[t+1] decides; mask[0] has no row that predicts it and is not counted.
    """
    rows, targets, owners = [], [], []
    start = 0
    for owner, (ids, mask) in enumerate(sequences):
        for t in range(1, len(ids)):
            if mask[t]:
                rows.append(start + t - 1)
                targets.append(ids[t])
                owners.append(owner)
        start += len(ids)
    return rows, targets, owners


@torch.no_grad()
def _score(model: LanguageModel, window: list[Scored], slot: int) -> list[tuple[float, int]]:
    rows, targets, owners = target_rows(window)
    hidden_TD = model.hidden(pack([ids for ids, _ in window], [slot] * len(window), model.device))
    index = torch.tensor(rows, dtype=torch.long, device=model.device)
    nll_T = model.nll(hidden_TD[index], torch.tensor(targets, dtype=torch.long, device=model.device), slot)
    sums, counts = [0.0] * len(window), [0] * len(window)
    for owner, value in zip(owners, nll_T.tolist(), strict=True):
        sums[owner] += value
        counts[owner] += 1
    return list(zip(sums, counts, strict=True))


def sequence_nll(
    model: LanguageModel, sequences: Sequence[Scored], slot: int, max_tokens: int = 2048
) -> Iterator[tuple[float, int]]:
    """Yield (sum of −log p in nats, tokens counted) for each (ids, mask), in order.

    Sequences are packed up to `max_tokens` a batch (a longer one goes alone); the next batch runs when it is asked for.
    """
    for window in _windows(sequences, max_tokens):
        yield from _score(model, window, slot)
