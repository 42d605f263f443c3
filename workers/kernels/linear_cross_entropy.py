"""Cross-entropy of a vocabulary head without ever holding all logits: chunks of rows, gradient made in the forward.

Knows tensors only. The gradient of one row's loss to its logits is softmax − onehot; it is folded into the hidden
gradient chunk by chunk and scaled by the incoming gradient later, which is exact because each row has its own loss.

Legend: T rows, C rows of a chunk, D width, V vocabulary.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

from workers.kernels.packed_weight import packed_linear

CHUNK_ROWS = 128


class _Chunk(NamedTuple):
    """exp(logits − max) and its row sums, from which loss and gradient both follow."""

    nll_C: Tensor
    exp_CV: Tensor
    sum_C1: Tensor


def _chunk(hidden_CD: Tensor, weight_VD: Tensor, packed: Tensor | None, targets_C: Tensor) -> _Chunk:
    logits_CV = linear(hidden_CD, weight_VD) if packed is None else packed_linear(hidden_CD, packed)
    max_C1 = logits_CV.amax(-1, keepdim=True)
    shifted_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32)).sub_(max_C1)
    target_C1 = shifted_CV.gather(-1, targets_C[:, None])
    exp_CV = shifted_CV.exp_()
    sum_C1 = exp_CV.sum(-1, keepdim=True)
    return _Chunk((sum_C1.log() - target_C1)[:, 0], exp_CV, sum_C1)


def _logits_gradient(chunk: _Chunk, targets_C: Tensor, dtype: torch.dtype) -> Tensor:
    """Return softmax − onehot; uses up the chunk."""
    grad_CV = chunk.exp_CV.div_(chunk.sum_C1)
    grad_CV.scatter_add_(-1, targets_C[:, None], torch.full_like(chunk.sum_C1, -1.0))
    return grad_CV.to(dtype)


class _LinearCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, weight_VD: Tensor, packed: Tensor | None, targets_T: Tensor) -> Tensor:
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        nll, grads = [], []
        for rows in range(0, len(targets_T), CHUNK_ROWS):
            hidden_CD, targets_C = hidden_TD[rows : rows + CHUNK_ROWS], targets_T[rows : rows + CHUNK_ROWS]
            chunk = _chunk(hidden_CD, weight_VD, packed, targets_C)
            nll.append(chunk.nll_C)
            if need_hidden:
                grads.append(_logits_gradient(chunk, targets_C, hidden_TD.dtype) @ weight_VD)
        ctx.save_for_backward(
            torch.cat(grads) if need_hidden else None, hidden_TD if need_weight else None, weight_VD, targets_T
        )
        return torch.cat(nll)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gy_T,) = grads
        unit_TD, hidden_TD, weight_VD, targets_T = ctx.saved_tensors
        g_hidden = None if unit_TD is None else unit_TD * gy_T.to(unit_TD.dtype)[:, None]
        g_weight = None
        if hidden_TD is not None:
            g_weight = torch.zeros_like(weight_VD)
            for rows in range(0, len(targets_T), CHUNK_ROWS):
                part = slice(rows, rows + CHUNK_ROWS)
                chunk = _chunk(hidden_TD[part], weight_VD, None, targets_T[part])
                grad_CV = _logits_gradient(chunk, targets_T[part], weight_VD.dtype)
                g_weight.addmm_((grad_CV * gy_T[part, None].to(grad_CV.dtype)).T, hidden_TD[part])
        return g_hidden, g_weight, None, None


def linear_cross_entropy(
    hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, packed: Tensor | None = None
) -> Tensor:
    """Return −log softmax(hidden weightᵀ)[target] of each row, [T], float32 (float64 for float64 input).

    Gradients flow to `hidden_TD`, and to `weight_VD` if it requires one. `packed` is the weight's packed copy.
    """
    if len(targets_T) == 0:
        return hidden_TD.sum(-1).to(torch.promote_types(hidden_TD.dtype, torch.float32))
    result: Tensor = _LinearCrossEntropy.apply(hidden_TD, weight_VD, packed, targets_T)  # type: ignore[no-untyped-call]
    return result
