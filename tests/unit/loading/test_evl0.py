"""EVL0 checkpoints: the seeds' own files byte for byte, round trips of any shape, and every defect refused by name."""

import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evermind import file, oracle
from workers.loading.architectures.base import LoadingError
from workers.loading.evl0 import EvermindShape, parse_evl0, serialize_evl0, tensor_shapes, truncated_half

WHOLE = file("evermind_f32.evl0")


def resealed(data: bytes) -> bytes:
    """Return the data with the CRC that fits it."""
    return data[:-4] + struct.pack("<I", zlib.crc32(data[:-8]))


def with_field(index: int, value: int) -> bytes:
    """Return the checkpoint with one header field changed and a CRC that fits."""
    return resealed(WHOLE[: 4 * index] + struct.pack("<I", value) + WHOLE[4 * index + 4 :])


def test_the_header_and_the_order_are_the_seeds() -> None:
    shape, tensors = parse_evl0(WHOLE)
    config = oracle()["config"]
    assert shape == EvermindShape(
        *(config[k] for k in ("vocabSize", "dModel", "numLayers", "convKernel", "hiddenDim")), 4, 2
    )
    assert list(tensors) == oracle()["parameter_order"]
    assert [t.numel() for t in tensors.values()] == oracle()["parameter_sizes"]
    assert {t.dtype for t in tensors.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("name", "half"), [("evermind_f32", False), ("evermind_merged", False), ("evermind_f16", True)]
)
def test_reading_and_writing_gives_the_same_bytes(name: str, half: bool) -> None:
    data = file(f"{name}.evl0")
    assert serialize_evl0(*parse_evl0(data), half=half) == data


def test_half_precision_rounds_as_the_seeds_do() -> None:
    assert serialize_evl0(*parse_evl0(WHOLE), half=True) == file("evermind_f16.evl0")


@st.composite
def checkpoints(draw: st.DrawFn) -> tuple[EvermindShape, dict[str, torch.Tensor]]:
    sizes = [draw(st.integers(1, 5)) for _ in range(6)]
    shape = EvermindShape(*sizes, draw(st.integers(1, sizes[-1])))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return shape, {n: torch.randn(s, generator=generator) * 100 for n, s in tensor_shapes(shape).items()}


@settings(max_examples=40, deadline=None)
@given(checkpoint=checkpoints())
def test_any_shape_makes_the_round_trip(checkpoint: tuple[EvermindShape, dict[str, torch.Tensor]]) -> None:
    shape, tensors = checkpoint
    read_shape, read = parse_evl0(serialize_evl0(shape, tensors))
    assert read_shape == shape
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    _, halved = parse_evl0(serialize_evl0(shape, tensors, half=True))
    for name, tensor in tensors.items():
        error = tensor.abs() - halved[name].abs()
        assert (error >= 0).all()
        assert (error <= tensor.abs() / 1024 + 2**-24).all()
        assert (tensor * halved[name] >= 0).all()


@settings(max_examples=80, deadline=None)
@given(position=st.integers(0, len(WHOLE) - 1), flip=st.integers(1, 255))
def test_any_changed_byte_is_refused(position: int, flip: int) -> None:
    broken = bytearray(WHOLE)
    broken[position] ^= flip
    with pytest.raises(LoadingError, match=r"^EVL0: "):
        parse_evl0(bytes(broken))


@settings(max_examples=40, deadline=None)
@given(length=st.integers(0, len(WHOLE) - 1), more=st.binary(min_size=1, max_size=9))
def test_any_other_length_is_refused(length: int, more: bytes) -> None:
    for data in (WHOLE[:length], WHOLE + more):
        with pytest.raises(LoadingError, match=r"size|too few"):
            parse_evl0(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (with_field(0, 0x45564C31), "magic 0x45564c31 is not 0x45564c30"),
        (with_field(1, 3), "version 3 is neither"),
        (with_field(1, 2), "size 36588 bytes"),
        (with_field(2, 49), "size 36588 bytes, but the header's sizes ask for 36652"),
        (with_field(4, 0), "layers 0 must be at least 1"),
        (with_field(4, 2**32 - 1), "the header's sizes ask for"),
        (with_field(8, 5), "top_k 5 is more than 4 experts"),
        (WHOLE[:-8] + b"EVCS" + WHOLE[-4:], "trailer magic"),
        (WHOLE[:-1] + bytes([WHOLE[-1] ^ 1]), "CRC 0x"),
        (b"", "0 bytes are too few"),
    ],
)
def test_each_defect_is_named(data: bytes, words: str) -> None:
    with pytest.raises(LoadingError, match=words):
        parse_evl0(data)


def test_what_does_not_fit_is_not_written() -> None:
    shape, tensors = parse_evl0(WHOLE)
    with pytest.raises(LoadingError, match=r"layer1.conv is missing, expected \(16, 3\)"):
        serialize_evl0(shape, {n: t for n, t in tensors.items() if n != "layer1.conv"})
    with pytest.raises(LoadingError, match=r"layer1.conv is \(3, 16\), expected \(16, 3\)"):
        serialize_evl0(shape, {**tensors, "layer1.conv": tensors["layer1.conv"].T})
    with pytest.raises(LoadingError, match=r"layer2\.conv is unknown"):
        serialize_evl0(shape, {**tensors, "layer2.conv": tensors["layer1.conv"]})
    with pytest.raises(LoadingError, match="embedding has a value that is not finite in version 2"):
        serialize_evl0(shape, {**tensors, "embedding": torch.full((48, 16), 1e6)}, half=True)


def test_truncation_keeps_what_float16_holds_and_says_what_it_does_not() -> None:
    exact = torch.tensor([0.0, -0.0, 1.5, -65504.0, 2**-24, 2**-14])
    assert torch.equal(truncated_half(exact).float(), exact)
    between = torch.tensor([1 + 2**-10 + 2**-11 + 2**-20, -(1 + 2**-11 + 2**-20), 2**-25 * 1.5, 65519.0, 65536.0])
    assert truncated_half(between).tolist() == [1 + 2**-10, -1.0, 0.0, 65504.0, float("inf")]


def test_the_file_holds_what_numpy_reads() -> None:
    _, tensors = parse_evl0(WHOLE)
    flat = np.frombuffer(WHOLE[36:-8], "<f4")
    assert np.array_equal(np.concatenate([t.numpy().ravel() for t in tensors.values()]), flat)
