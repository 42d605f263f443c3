"""oneDNN's blocked copy of a frozen bfloat16 weight: at few rows the CPU streams it about twice as fast.

Knows torch and oneDNN; does not know what the weight means. The copy never follows later changes of the weight.

Legend: T rows, K inputs, N outputs.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

MIN_ROWS = 4
"""oneDNN streams a blocked weight about a tenth faster for four rows than for one to three."""


def can_pack(weight_NK: Tensor) -> bool:
    """Whether oneDNN multiplies this weight natively in a blocked layout."""
    return (
        weight_NK.device.type == "cpu"
        and weight_NK.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def pack_weight(weight_NK: Tensor) -> Tensor:
    """Return the blocked copy, an opaque tensor that only `packed_linear` reads."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_NK.detach().contiguous(), None)
    return packed


def packed_linear(x_TK: Tensor, packed: Tensor) -> Tensor:
    """Return x Wᵀ [T, N]. No autograd."""
    rows = x_TK.shape[0]
    if rows == 1:
        x_TK = x_TK.expand(MIN_ROWS, -1)
    elif 0 < rows < MIN_ROWS:
        x_TK = pad(x_TK, (0, 0, 0, MIN_ROWS - rows))
    y_TN: Tensor = torch.ops.mkldnn._linear_pointwise.default(x_TK, packed, None, "none", [], "")
    return y_TN.narrow(0, 0, rows)
