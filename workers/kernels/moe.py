"""Rows to experts and back: the gates of the best few experts of each row, and their outputs' weighted sum.

Knows tensors only; what an expert computes is the caller's. (Shazeer et al. 2017, arXiv:1701.06538.)

Legend: T rows, D width, E experts, K selected a row, P = T·K pairs of row and expert.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def best_gates(logits_TE: Tensor, top_k: int, *, over_all: bool) -> tuple[Tensor, Tensor]:
    """Return gates [T, K] in the logits' dtype and the selected experts [T, K].

    The softmax is over the selected logits, or over all and then not normalised again; in float32 or wider.
    """
    wide_TE = logits_TE.to(torch.promote_types(logits_TE.dtype, torch.float32))
    if over_all:
        gates_TK, chosen_TK = wide_TE.softmax(-1).topk(top_k, dim=-1)
    else:
        best_TK, chosen_TK = wide_TE.topk(top_k, dim=-1)
        gates_TK = best_TK.softmax(-1)
    return gates_TK.to(logits_TE.dtype), chosen_TK


def mix_experts(
    x_TD: Tensor, gates_TK: Tensor, chosen_TK: Tensor, experts: int, net: Callable[[int, Tensor], Tensor]
) -> Tensor:
    """Return the gated sum of the selected experts' outputs [T, D]; `net(e, rows)` computes expert e.

    An expert sees all its rows at once; one without rows is not called.
    """
    chosen_P = chosen_TK.flatten()
    order_P = chosen_P.argsort(stable=True)
    pieces = x_TD[order_P // chosen_TK.shape[1]].split(chosen_P.bincount(minlength=experts).tolist())
    y_PD = torch.cat([net(expert, piece) for expert, piece in enumerate(pieces) if len(piece)])
    gated_PD = y_PD * gates_TK.flatten()[order_P, None]
    gated_TKD: Tensor = gated_PD[order_P.argsort()].unflatten(0, chosen_TK.shape)
    return gated_TKD.sum(1)
