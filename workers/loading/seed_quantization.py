"""The seeds' own view of a quantised matrix: float16 rounded towards zero, int8 with one scale for all.

Bases are held in `workers.kernels.quantized_weight`'s formats; this one says what the seeds compute, and its bytes.
"""

from typing import Literal

import torch
from torch import Tensor

from workers.loading.evl0 import truncated_half


def seed_view(matrix: Tensor, kind: Literal["none", "fp16", "int8"]) -> tuple[Tensor, int]:
    """Return what the matrix is after quantising, in its own dtype, and the bytes that it takes so.

    int8: one scale max|w| / 127, halves rounded up as the seeds round; its four bytes are counted.
    """
    count = matrix.numel()
    if kind == "none":
        return matrix.clone(), 4 * count
    if kind == "fp16":
        return truncated_half(matrix.float()).to(matrix.dtype), 2 * count
    scale = matrix.float().abs().max() / 127
    codes = (matrix.float() / scale + 0.5).floor().clamp(-127, 127) if scale > 0 else torch.zeros_like(matrix)
    return (codes * scale).to(matrix.dtype), count + 4
