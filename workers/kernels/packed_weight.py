"""oneDNN's blocked copy of a frozen weight: at few rows the CPU multiplies with it up to twice as fast.

Knows torch and oneDNN; does not know what the weight means. The copy never follows later changes of the weight.

Legend: T rows, K inputs, N outputs.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

MIN_ROWS = 4
"""oneDNN streams a blocked bfloat16 weight about a tenth faster for four rows than for one to three."""
FLOAT32_ROWS = range(2, 129)
"""Where the blocked copy is the faster one in float32. A single row is bound by memory, many are by arithmetic."""


def can_pack(weight_NK: Tensor) -> bool:
    """Whether oneDNN multiplies this weight natively in a blocked layout."""
    if weight_NK.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight_NK.dtype == torch.float32:
        return True
    return weight_NK.dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_weight(weight_NK: Tensor) -> Tensor:
    """Return the blocked copy, an opaque tensor that only `packed_linear` reads."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_NK.detach().contiguous(), None)
    return packed


def packed_linear(x_TK: Tensor, weight_NK: Tensor, packed: Tensor | None) -> Tensor:
    """Return x Wᵀ [T, N] with the weight or, where there is one and it is faster, with its packed copy. No autograd."""
    rows = x_TK.shape[0]
    if packed is None or (x_TK.dtype == torch.float32 and rows not in FLOAT32_ROWS):
        return linear(x_TK, weight_NK)
    if x_TK.dtype != torch.float32 and 0 < rows < MIN_ROWS:
        x_TK = x_TK.expand(MIN_ROWS, -1) if rows == 1 else pad(x_TK, (0, 0, 0, MIN_ROWS - rows))
    y_TN: Tensor = torch.ops.mkldnn._linear_pointwise.default(x_TK, packed, None, "none", [], "")
    return y_TN.narrow(0, 0, rows)
