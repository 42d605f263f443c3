"""Causal attention with grouped queries over packed sequences; a row never sees another sequence.

Knows tensors, lengths and key/value states. Neighbouring sequences of equal length are computed together.

Legend: T rows, S sequences of a run, L tokens of one sequence, M keys seen,
H query heads, G key/value heads, E head width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from workers.kernels.causal_attention import causal_attention, fused_attention, seen_mask
from workers.models.layers.key_value_state import KeyValueState
from workers.models.layers.runs import equal_runs


def packed_attention(q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, lengths: Sequence[int], window: int | None) -> Tensor:
    """Attend within each sequence, from its first token or from the `window` latest. Returns [T, H, E]."""
    runs = equal_runs(lengths)
    sizes = [count * length for count, length in runs]
    pieces = zip(runs, q_THE.split(sizes), k_TGE.split(sizes), v_TGE.split(sizes), strict=True)
    outputs = [
        causal_attention(
            q.unflatten(0, (count, length)), k.unflatten(0, (count, length)), v.unflatten(0, (count, length)), window
        ).flatten(0, 1)
        for (count, length), q, k, v in pieces
    ]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def cached_attention(
    q_THE: Tensor, kv_T2GE: Tensor, lengths: Sequence[int], states: Sequence[KeyValueState], window: int | None
) -> Tensor:
    """Append each sequence's keys and values to its state, and attend to it within `window`. Returns [T, H, E]."""
    outputs, start = [], 0
    for length, state in zip(lengths, states, strict=True):
        past = state.length
        kv_M2GE = state.append(kv_T2GE.narrow(0, start, length))
        outputs.append(_attend_cache(q_THE.narrow(0, start, length), kv_M2GE, past, window))
        start += length
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_cache(q_LHE: Tensor, kv_M2GE: Tensor, past: int, window: int | None) -> Tensor:
    length, groups = q_LHE.shape[0], kv_M2GE.shape[1] // 2
    if window is not None and past >= window:
        kv_M2GE, past = kv_M2GE.narrow(0, past - window + 1, length + window - 1), window - 1
    if length == 1:
        # The queries that share a key head become the rows of one small product; one token has no future to mask.
        q_1GSE = q_LHE.view(1, groups, -1, q_LHE.shape[2])
        k_1GME, v_1GME = kv_M2GE.transpose(0, 1).unsqueeze(0).split_with_sizes([groups, groups], dim=1)
        return scaled_dot_product_attention(q_1GSE, k_1GME, v_1GME).flatten(1, 2)
    mask_LM = None
    if past or (window is not None and window < length):
        mask_LM = seen_mask(length, past, window, q_LHE.device)
    k_1MGE, v_1MGE = kv_M2GE[None].split(groups, dim=2)
    return fused_attention(q_LHE[None], k_1MGE, v_1MGE, mask_LM, causal=mask_LM is None)[0]
