"""An uploaded safetensors file is believed only after it was checked."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from app.core.errors import InvalidRequestError
from app.services.safetensors_file import MAX_HEADER_BYTES, check_safetensors, read_header, tensor_shapes, transposes

GOOD = save({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16)})


def file_of(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "upload"
    path.write_bytes(data)
    return path


def raw(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_a_good_file_gives_its_shapes(tmp_path: Path) -> None:
    path = file_of(tmp_path, GOOD)
    assert check_safetensors(path) == {"a": (2, 3), "b": (4,)}
    with path.open("rb") as file:
        assert tensor_shapes(read_header(file)) == {"a": (2, 3), "b": (4,)}


def test_a_transpose_is_told_from_what_only_looks_like_one(tmp_path: Path) -> None:
    square = np.arange(9, dtype=np.float32).reshape(3, 3)
    tensors = {"a": square, "same": square.T, "other": square + 1, "half": square.T.astype(np.float16)}
    path = file_of(tmp_path, save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}))
    assert [transposes(path, name, "a") for name in ("same", "other", "half")] == [True, False, False]


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0])
def test_bfloat16_infinities_and_nan_are_seen(tmp_path: Path, bits: int) -> None:
    entry = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}
    fine = raw({"a": entry}, np.array([0x7F7F, 0x3F80], "<u2").tobytes())
    assert check_safetensors(file_of(tmp_path, fine)) == {"a": (2,)}
    bad = raw({"a": entry}, np.array([0x3F80, bits], "<u2").tobytes())
    with pytest.raises(InvalidRequestError, match="tensor 'a' holds NaN or infinite"):
        check_safetensors(file_of(tmp_path, bad))


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
BROKEN = {
    "header beyond its cap": ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", "its header may have"),
    "header of a list": (raw([1, 2]), "not a JSON object"),
    "header that is not JSON": (b"\x03" + b"\0" * 7 + b"abc", "not JSON"),
    "no tensors": (raw({"__metadata__": {}}), "0 tensors"),
    "entry that is no object": (raw({"a": 5, "b": ENTRY}, b"\0" * 4), "not a valid safetensors file"),
    "offsets beyond the data": (raw({"a": ENTRY | {"data_offsets": [0, 400]}}, b"\0" * 4), "not a valid"),
    "offsets that overlap": (raw({"a": ENTRY, "b": ENTRY}, b"\0" * 4), "not a valid"),
    "shape that does not fit": (raw({"a": ENTRY | {"shape": [3]}}, b"\0" * 4), "not a valid"),
    "bytes after the data": (GOOD + b"junk", "not a valid"),
    "doubles": (save({"a": np.ones(2, np.float64)}), "dtype 'F64'"),
    "a torch archive": (b"PK\x03\x04" + b"\0" * 40, "not a safetensors file"),
    "a zip archive": (b"PK\x03\x04\x14\x00\x08\x08" + b"x" * 40, "a zip archive"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_in_words(tmp_path: Path, name: str) -> None:
    data, says = BROKEN[name]
    with pytest.raises(InvalidRequestError) as caught:
        check_safetensors(file_of(tmp_path, data))
    assert says in caught.value.message
    assert caught.value.param == "weights"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255), cut=st.integers(0, len(GOOD)))
def test_a_damaged_file_is_refused_or_understood_but_never_crashes(
    tmp_path: Path, at: int, byte: int, cut: int
) -> None:
    damaged = bytearray(GOOD)
    damaged[at] = byte
    for data in (bytes(damaged), GOOD[:cut]):
        try:
            shapes = check_safetensors(file_of(tmp_path, data))
        except InvalidRequestError:
            continue
        assert sum(int(np.prod(shape)) for shape in shapes.values()) == 10
