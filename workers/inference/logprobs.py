"""Log-probabilities as the client sees them: of the untouched distribution at temperature 1.

Legend: V vocabulary, R rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from app.contracts.inference import TokenLogprob
from app.text.tokenizer import TextTokenizer


def token_logprobs(
    logits_RV: Tensor, token_ids: Sequence[int], top: int, tokenizer: TextTokenizer
) -> list[TokenLogprob]:
    """Return for each row the log-probability (nats) of its token and the `top` best alternatives."""
    log_RV = torch.log_softmax(logits_RV.float(), dim=-1)
    chosen = log_RV[torch.arange(len(token_ids)), torch.tensor(token_ids)].tolist()
    best = torch.topk(log_RV, min(top, log_RV.shape[-1]), dim=-1)
    return [
        TokenLogprob(
            token_id=token_id,
            token=tokenizer.token(token_id),
            logprob=logprob,
            top=[(i, tokenizer.token(i), value) for i, value in zip(ids, values, strict=True)],
        )
        for token_id, logprob, ids, values in zip(
            token_ids, chosen, best.indices.tolist(), best.values.tolist(), strict=True
        )
    ]


def first_token(token_id: int, tokenizer: TextTokenizer) -> TokenLogprob:
    """Return the entry of a prompt's first token, which nothing predicts."""
    return TokenLogprob(token_id=token_id, token=tokenizer.token(token_id), logprob=None, top=[])
