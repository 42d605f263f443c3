"""The seeds' adapter blob: one low-rank term of one matrix as bytes. Knows tensors; not which module they belong to.

Little-endian: uint32 magic, rows, cols, rank, float32 alpha, then B [rows, rank] and A [rank, cols] in float32; the
delta is alpha / rank · B A.
"""

import struct
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from app.contracts.adapter_format import MAX_RANK, AdapterFormatError

MAGIC = 0x4C4F5241
_HEADER = struct.Struct("<4If")


class SeedAdapter(NamedTuple):
    """Factors in float32 on the CPU, and alpha."""

    a_RK: Tensor
    b_NR: Tensor
    alpha: float


def parse_seed_adapter(data: bytes) -> SeedAdapter:
    """Return the adapter. Raises AdapterFormatError: magic, sizes, length, alpha, or a value that is not finite."""
    if len(data) < _HEADER.size:
        raise AdapterFormatError(f"adapter blob: {len(data)} bytes are too few for a header of {_HEADER.size}")
    magic, rows, cols, rank, alpha = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise AdapterFormatError(f"adapter blob: magic {magic:#010x} is not {MAGIC:#010x}")
    if not (1 <= rank <= MAX_RANK and rows >= 1 and cols >= 1):
        raise AdapterFormatError(f"adapter blob: rows {rows}, cols {cols}, rank {rank}: rank must be 1 to {MAX_RANK}")
    expected = _HEADER.size + 4 * rank * (rows + cols)
    if len(data) != expected:
        raise AdapterFormatError(f"adapter blob: size {len(data)} bytes, but its header asks for {expected}")
    if not (0 < alpha < float("inf")):
        raise AdapterFormatError(f"adapter blob: alpha {alpha} must be positive and finite")
    values = np.frombuffer(data, "<f4", offset=_HEADER.size).astype(np.float32)
    b_NR = torch.from_numpy(values[: rows * rank].reshape(rows, rank))
    a_RK = torch.from_numpy(values[rows * rank :].reshape(rank, cols))
    for name, factor in (("A", a_RK), ("B", b_NR)):
        if not bool(factor.isfinite().all()):
            raise AdapterFormatError(f"adapter blob: {name} has a value that is not finite", name)
    return SeedAdapter(a_RK, b_NR, alpha)


def serialize_seed_adapter(adapter: SeedAdapter) -> bytes:
    """Return the blob. Raises AdapterFormatError when the factors do not fit each other."""
    a_RK, b_NR = (factor.detach().to("cpu", torch.float32).contiguous() for factor in (adapter.a_RK, adapter.b_NR))
    if a_RK.dim() != 2 or b_NR.dim() != 2 or a_RK.shape[0] != b_NR.shape[1]:
        raise AdapterFormatError(f"adapter blob: B {tuple(b_NR.shape)} and A {tuple(a_RK.shape)} do not multiply")
    header = _HEADER.pack(MAGIC, b_NR.shape[0], a_RK.shape[1], a_RK.shape[0], adapter.alpha)
    return header + b"".join(factor.numpy().astype("<f4", copy=False).tobytes() for factor in (b_NR, a_RK))
