"""Draws the next token of one choice from its logits.

Knows distributions and random streams; knows nothing of batches, requests or text. A choice draws from its own CPU
generator and inverts the cumulative distribution in vocabulary order, so what it samples depends on its seed and its
logits alone, never on its neighbours or on the device.

Legend: V vocabulary, C candidates left by top-k and top-p.
"""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from app.contracts.inference import SamplingParams

LOWEST_TEMPERATURE = 1e-6
"""Below it float32 overflows; the most likely token has all the probability long before."""
USUAL_NUCLEUS = 256
"""Tokens among which top-p is looked for first: sorting a whole vocabulary takes as long as a small model's step."""


def choice_generator(seed: int, index: int) -> torch.Generator:
    """Return the random stream of choice `index` of a request seeded with `seed`."""
    digest = hashlib.sha256(f"{seed}:{index}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def penalize(logits_V: Tensor, counts: Mapping[int, int], params: SamplingParams) -> Tensor:
    """Return logits less the presence and frequency penalties of the tokens generated so far (OpenAI's formula)."""
    if not counts or (params.presence_penalty == 0 and params.frequency_penalty == 0):
        return logits_V
    ids = torch.tensor(list(counts), device=logits_V.device)
    times = torch.tensor(list(counts.values()), dtype=logits_V.dtype, device=logits_V.device)
    return logits_V.index_add(0, ids, -(params.presence_penalty + params.frequency_penalty * times))


def candidates(logits_V: Tensor, top_k: int, top_p: float) -> Tensor:
    """Return the token ids that survive top-k, then top-p, in ascending order.

    Top-p keeps the fewest most likely tokens whose probabilities, after top-k, add up to at least `top_p`.
    """
    size = logits_V.shape[0]
    if (top_k or size) >= size and top_p >= 1:
        return torch.arange(size, device=logits_V.device)
    if 0 < top_k < size:
        values_C, ids_C = torch.topk(logits_V, top_k)
        probabilities_C = torch.softmax(values_C, dim=0)
    else:
        values_C, ids_C = torch.topk(logits_V, min(USUAL_NUCLEUS, size))
        probabilities_C = torch.exp(values_C - torch.logsumexp(logits_V, dim=0))
        if probabilities_C.sum() < top_p:
            values_C, ids_C = torch.sort(logits_V, descending=True)
            probabilities_C = torch.softmax(values_C, dim=0)
    mass_before_C = probabilities_C.cumsum(0) - probabilities_C
    return ids_C[mass_before_C < top_p].sort().values


def next_token(logits_V: Tensor, params: SamplingParams, generator: torch.Generator, counts: Mapping[int, int]) -> int:
    """Return the next token id; temperature 0 takes the most likely one and draws nothing."""
    logits_V = penalize(logits_V, counts, params)
    if params.temperature == 0:
        return int(logits_V.argmax())
    scaled_V = (logits_V - logits_V.max()) / max(params.temperature, LOWEST_TEMPERATURE)
    ids_C = candidates(scaled_V, params.top_k, params.top_p)
    cumulative_C = torch.softmax(scaled_V[ids_C], dim=0).cumsum(0, dtype=torch.float64)
    uniform = torch.rand(1, generator=generator, dtype=torch.float64).to(cumulative_C.device)
    place = torch.searchsorted(cumulative_C, uniform * cumulative_C[-1], right=True)
    return int(ids_C[place.clamp(max=len(ids_C) - 1)])
