"""Cross-entropy of a vocabulary head without ever holding all logits: chunks of rows, gradient made in the forward.

Knows tensors only. The gradient of one row's loss to its logits is softmax − onehot; it is folded into the hidden
gradient chunk by chunk and scaled by the incoming gradient later, which is exact because each row has its own loss. The
head may carry a low-rank term: logits = hidden Wᵀ + low Bᵀ.

Legend: T rows, C rows of a chunk, D width, V vocabulary, R rank of the low-rank term.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from workers.kernels.packed_weight import packed_linear

CHUNK_ROWS = 128


class _Head(NamedTuple):
    """The vocabulary matrix, its packed copy if there is one, and the low-rank term's B."""

    weight_VD: Tensor
    packed: Tensor | None
    b_VR: Tensor | None


class _Chunk(NamedTuple):
    """exp(logits − max) and its row sums, from which loss and gradient both follow."""

    nll_C: Tensor
    exp_CV: Tensor
    sum_C1: Tensor


def _spans(rows: int) -> list[slice]:
    """Cut the rows into chunks of equal size, give or take one, so that their buffers can be used again."""
    count = -(-rows // CHUNK_ROWS)
    edges = [rows * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _chunk(hidden_CD: Tensor, low_CR: Tensor | None, head: _Head, targets_C: Tensor) -> _Chunk:
    logits_CV = packed_linear(hidden_CD, head.weight_VD, head.packed)
    if low_CR is not None and head.b_VR is not None:
        logits_CV = logits_CV.addmm_(low_CR, head.b_VR.T)
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


def _rows(x: Tensor | None, span: slice) -> Tensor | None:
    return None if x is None else x[span]


class _LinearCrossEntropy(Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (autograd passes by position)
        ctx: Any,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        packed: Tensor | None,
        low_TR: Tensor | None,
        b_VR: Tensor | None,
        targets_T: Tensor,
    ) -> Tensor:
        head = _Head(weight_VD, packed, b_VR)
        nll, grads, low_grads = [], [], []
        for span in _spans(len(targets_T)):
            chunk = _chunk(hidden_TD[span], _rows(low_TR, span), head, targets_T[span])
            nll.append(chunk.nll_C)
            if ctx.needs_input_grad[0] or ctx.needs_input_grad[3]:
                grad_CV = _logits_gradient(chunk, targets_T[span], hidden_TD.dtype)
                grads.append(grad_CV @ weight_VD)
                if b_VR is not None:
                    low_grads.append(grad_CV @ b_VR)
        again = ctx.needs_input_grad[1] or ctx.needs_input_grad[4]
        ctx.save_for_backward(
            torch.cat(grads) if grads else None,
            torch.cat(low_grads) if low_grads else None,
            hidden_TD if again else None,
            low_TR if again else None,
            weight_VD,
            b_VR,
            targets_T,
        )
        return torch.cat(nll)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gy_T,) = grads
        unit_TD, unit_TR, hidden_TD, low_TR, weight_VD, b_VR, targets_T = ctx.saved_tensors
        g_hidden = None if unit_TD is None else unit_TD * gy_T.to(unit_TD.dtype)[:, None]
        g_low = None if unit_TR is None else unit_TR * gy_T.to(unit_TR.dtype)[:, None]
        g_weight = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        g_b = torch.zeros_like(b_VR) if ctx.needs_input_grad[4] else None
        if hidden_TD is not None:
            for span in _spans(len(targets_T)):
                chunk = _chunk(hidden_TD[span], _rows(low_TR, span), _Head(weight_VD, None, b_VR), targets_T[span])
                grad_CV = _logits_gradient(chunk, targets_T[span], weight_VD.dtype)
                grad_VC = (grad_CV * gy_T[span, None].to(grad_CV.dtype)).T
                if g_weight is not None:
                    g_weight.addmm_(grad_VC, hidden_TD[span])
                if g_b is not None:
                    g_b.addmm_(grad_VC, low_TR[span])
        return g_hidden, g_weight, None, g_low, g_b, None


def linear_cross_entropy(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    packed: Tensor | None = None,
    low_rank: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return −log softmax(logits)[target] of each row, [T], float32 (float64 for float64 input).

    Logits are hidden Wᵀ, plus low Bᵀ with `low_rank` = (low [T, R], B [V, R]). Gradients flow to `hidden_TD` and the
    low-rank pair, and to `weight_VD` if it requires one. `packed` is the weight's packed copy.
    """
    if len(targets_T) == 0:
        return hidden_TD.sum(-1).to(torch.promote_types(hidden_TD.dtype, torch.float32))
    low_TR, b_VR = low_rank or (None, None)
    result: Tensor = _LinearCrossEntropy.apply(hidden_TD, weight_VD, packed, low_TR, b_VR, targets_T)  # type: ignore[no-untyped-call]
    return result
