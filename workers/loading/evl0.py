"""EVL0 checkpoints, the seeds' file format of EvermindLM: bytes to tensors under the seeds' names, and back.

Little-endian: nine uint32 (magic, version, sizes), all tensors in a fixed order in float32 (version 1) or float16
(version 2), then a trailer of a magic and the IEEE CRC-32 of everything before it. Knows no model and no paths.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workers.loading.architectures.base import LoadingError

MAGIC, TRAILER_MAGIC = 0x45564C30, 0x52435645
_HEADER, _TRAILER = struct.Struct("<9I"), struct.Struct("<2I")
_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 2: np.dtype("<f2")}


@dataclass(frozen=True)
class EvermindShape:
    """The sizes in a checkpoint's header, in the header's order. `hidden` is the width inside an expert."""

    vocab: int
    width: int
    layers: int
    taps: int
    hidden: int
    experts: int
    top_k: int


def _expert(prefix: str, shape: EvermindShape) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.w1": (shape.hidden, shape.width),
        f"{prefix}.b1": (shape.hidden,),
        f"{prefix}.w2": (shape.width, shape.hidden),
        f"{prefix}.b2": (shape.width,),
    }


def tensor_shapes(shape: EvermindShape) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor, in the order of the file."""
    shapes: dict[str, tuple[int, ...]] = {"embedding": (shape.vocab, shape.width)}
    for layer in range(shape.layers):
        prefix = f"layer{layer}"
        shapes[f"{prefix}.conv"] = (shape.width, shape.taps)
        shapes[f"{prefix}.norm_conv"] = shapes[f"{prefix}.norm_moe"] = (shape.width,)
        shapes[f"{prefix}.moe.wr"] = (shape.experts, shape.width)
        for expert in ("shared", *(f"expert{e}" for e in range(shape.experts))):
            shapes |= _expert(f"{prefix}.moe.{expert}", shape)
    return shapes


def _read_header(data: bytes) -> tuple[EvermindShape, np.dtype[Any]]:
    if len(data) < _HEADER.size + _TRAILER.size:
        raise LoadingError(f"EVL0: {len(data)} bytes are too few for a header and a trailer")
    magic, version, *sizes = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise LoadingError(f"EVL0: magic {magic:#010x} is not {MAGIC:#010x}")
    if version not in _DTYPES:
        raise LoadingError(f"EVL0: version {version} is neither 1 (float32) nor 2 (float16)")
    shape = EvermindShape(*sizes)
    _check_sizes(shape)
    return shape, _DTYPES[version]


def _check_sizes(shape: EvermindShape) -> None:
    for field in fields(shape):
        if getattr(shape, field.name) < 1:
            raise LoadingError(f"EVL0: {field.name} {getattr(shape, field.name)} must be at least 1")
    if shape.top_k > shape.experts:
        raise LoadingError(f"EVL0: top_k {shape.top_k} is more than {shape.experts} experts")


def _expected_size(shape: EvermindShape, item_size: int) -> int:
    """Return a checkpoint's bytes, without listing the tensors of a header that may be nonsense."""
    expert = 2 * shape.hidden * shape.width + shape.hidden + shape.width
    layer = shape.width * (shape.taps + 2 + shape.experts) + (shape.experts + 1) * expert
    scalars = shape.vocab * shape.width + shape.layers * layer
    return _HEADER.size + scalars * item_size + _TRAILER.size


def parse_evl0(data: bytes) -> tuple[EvermindShape, dict[str, Tensor]]:
    """Return the sizes and the tensors in float32. Raises LoadingError: magic, version, size, trailer or CRC."""
    shape, dtype = _read_header(data)
    expected = _expected_size(shape, dtype.itemsize)
    if len(data) != expected:
        raise LoadingError(f"EVL0: size {len(data)} bytes, but the header's sizes ask for {expected}")
    magic, crc = _TRAILER.unpack_from(data, len(data) - _TRAILER.size)
    if magic != TRAILER_MAGIC:
        raise LoadingError(f"EVL0: trailer magic {magic:#010x} is not {TRAILER_MAGIC:#010x}")
    actual = zlib.crc32(memoryview(data)[: -_TRAILER.size])
    if crc != actual:
        raise LoadingError(f"EVL0: CRC {crc:#010x} is not {actual:#010x}, that of the content")
    tensors, start = {}, _HEADER.size
    for name, sizes in tensor_shapes(shape).items():
        values = np.frombuffer(data, dtype, prod(sizes), start).astype(np.float32).reshape(sizes)
        tensors[name] = torch.from_numpy(values)
        start += prod(sizes) * dtype.itemsize
    return shape, tensors


def truncated_half(tensor: Tensor) -> Tensor:
    """Return float16 rounded towards zero, as the seeds round; what is beyond float16 becomes infinite."""
    nearest = tensor.half()
    too_far = (nearest.float().abs() > tensor.abs()) & nearest.isfinite()
    # One step towards zero is one less in the bits, whatever the sign.
    return (nearest.view(torch.int16) - too_far.to(torch.int16)).view(torch.float16)


def serialize_evl0(shape: EvermindShape, tensors: Mapping[str, Tensor], *, half: bool = False) -> bytes:
    """Return a checkpoint, in float16 if `half`. Raises LoadingError naming a tensor that is absent or does not fit."""
    _check_sizes(shape)
    expected = tensor_shapes(shape)
    for name in tensors:
        if name not in expected:
            raise LoadingError(f"EVL0: tensor {name} is unknown")
    version = 2 if half else 1
    parts = [_HEADER.pack(MAGIC, version, *astuple(shape))]
    for name, sizes in expected.items():
        if name not in tensors or tuple(tensors[name].shape) != sizes:
            found = tuple(tensors[name].shape) if name in tensors else "missing"
            raise LoadingError(f"EVL0: tensor {name} is {found}, expected {sizes}")
        wide = tensors[name].detach().to("cpu", torch.float32)
        stored = truncated_half(wide) if half else wide
        if not bool(stored.isfinite().all()):
            raise LoadingError(f"EVL0: tensor {name} has a value that is not finite in version {version}")
        values: np.ndarray[Any, Any] = stored.contiguous().numpy()
        parts.append(values.astype(_DTYPES[version], copy=False).tobytes())
    content = b"".join(parts)
    return content + _TRAILER.pack(TRAILER_MAGIC, zlib.crc32(content))
