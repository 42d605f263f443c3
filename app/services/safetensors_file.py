"""An uploaded safetensors file, checked before anything believes it. Never unpickles, never loads it whole.

Layout: 8 bytes little-endian header length, a JSON header with dtype, shape and byte offsets per tensor, the data.
The `safetensors` library checks the offsets; size caps, allowed dtypes and finite values are checked here.
"""

import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open

from app.core.errors import InvalidRequestError

MAX_HEADER_BYTES = 1024 * 1024
MAX_TENSORS = 8192
SCAN_BYTES = 4 * 1024 * 1024
# Unsigned view and exponent bits of each dtype: a value is NaN or infinite when all of them are set.
_EXPONENTS = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
_OTHER_FORMATS = {b"\x80": "a pickle", b"PK": "a zip archive (as torch.save writes)", b"GGUF": "a GGUF file"}


def refuse_weights(message: str) -> InvalidRequestError:
    """Return the refusal of an upload's `weights`."""
    return InvalidRequestError(f"weights: {message}", code="invalid_adapter", param="weights")


def check_safetensors(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in a file that is safe to store. Raises InvalidRequestError saying why not."""
    with path.open("rb") as file:
        header = read_header(file)
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__" and isinstance(entry, dict)}
        if not 1 <= len(tensors) <= MAX_TENSORS:
            raise refuse_weights(f"{len(tensors)} tensors, but 1 to {MAX_TENSORS} are expected")
        for name, entry in tensors.items():
            if (dtype := str(entry.get("dtype"))) not in _EXPONENTS:
                raise refuse_weights(f"tensor {name!r} has dtype {dtype!r}, but F32, F16 or BF16 are expected")
        try:
            with safe_open(path, framework="numpy") as checked:
                shapes = {name: tuple(checked.get_slice(name).get_shape()) for name in checked.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise refuse_weights(f"not a valid safetensors file: {error}") from error
        data_start = file.tell()
        for name, entry in tensors.items():
            _refuse_non_finite(file, name, entry, data_start)
    return shapes


def read_header(file: BinaryIO) -> dict[str, object]:
    """Return the JSON header and leave `file` at the first byte of data. Raises InvalidRequestError."""
    start = file.read(8)
    size = int.from_bytes(start, "little")
    for magic, form in _OTHER_FORMATS.items():
        if start.startswith(magic) and size > MAX_HEADER_BYTES:
            raise refuse_weights(f"this is {form}, not a safetensors file")
    if len(start) < 8 or not 2 <= size <= MAX_HEADER_BYTES:
        raise refuse_weights(f"not a safetensors file: its header may have 2 to {MAX_HEADER_BYTES} bytes, not {size}")
    try:
        header = json.loads(file.read(size).decode())
    except (ValueError, RecursionError) as error:
        raise refuse_weights(f"not a safetensors file: its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise refuse_weights("not a safetensors file: its header is not a JSON object")
    return header


def tensor_shapes(header: dict[str, object]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a stored, checked file."""
    entries = {name: entry for name, entry in header.items() if name != "__metadata__" and isinstance(entry, dict)}
    return {name: tuple(entry["shape"]) for name, entry in entries.items()}


def transposes(path: Path, name: str, other: str) -> bool:
    """Say whether two matrices of a checked file are each other's transpose, bit for bit."""
    with path.open("rb") as file:
        header: dict[str, Any] = read_header(file)
        data_start = file.tell()

    def view(name: str) -> np.ndarray[Any, np.dtype[Any]]:
        entry = header[name]
        dtype, start = _EXPONENTS[entry["dtype"]][0], data_start + entry["data_offsets"][0]
        return np.memmap(path, dtype=dtype, mode="r", offset=start, shape=tuple(entry["shape"]))

    return header[name]["dtype"] == header[other]["dtype"] and np.array_equal(view(name), view(other).T)


def _refuse_non_finite(file: BinaryIO, name: str, entry: dict[str, Any], data_start: int) -> None:
    view, exponent = _EXPONENTS[entry["dtype"]]
    begin, end = entry["data_offsets"]
    file.seek(data_start + begin)
    for position in range(begin, end, SCAN_BYTES):
        bits = np.frombuffer(file.read(min(SCAN_BYTES, end - position)), dtype=view)
        if bool(((bits & exponent) == exponent).any()):
            raise refuse_weights(f"tensor {name!r} holds NaN or infinite values")
