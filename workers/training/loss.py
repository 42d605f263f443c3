"""The training loss of windows packed end to end: summed next-token negative log-likelihood over masked positions.

Legend: T packed tokens, D hidden width, N counted positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.models.batch import pack
from workers.models.language_model import LanguageModel
from workers.models.scoring import target_rows
from workers.training.dataset import Window


def nll_sum(model: LanguageModel, windows: Sequence[Window], slot: int, *, recompute: bool = False) -> Tensor:
    """Return the scalar sum, in nats, of -log p(token t | tokens before t of its window) where the mask counts t.

    A sum and not a mean: the caller divides by the counted positions of the whole optimizer step, so that any cut into
    micro-batches gives the big batch's gradient. The vocabulary head sees only the rows that count. `recompute` trades
    time for memory, see `LanguageModel.hidden`.
    """
    batch = pack([w.token_ids for w in windows], [slot] * len(windows), model.device)
    rows, targets, _ = target_rows([(w.token_ids, w.loss_mask) for w in windows])
    hidden_TD = model.hidden(batch, recompute=recompute)
    rows_N = torch.tensor(rows, device=model.device)
    return model.nll(hidden_TD[rows_N], torch.tensor(targets, device=model.device), slot).sum()
