"""The seeds' adapter blob: their file byte for byte, round trips, and every defect refused by name."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contracts.adapter_format import AdapterFormatError
from tests.evermind import file, oracle
from workers.lora.seed_adapter import SeedAdapter, parse_seed_adapter, serialize_seed_adapter

BLOB = file("evermind_adapter.bin")


def test_the_seeds_file_holds_the_adapter_that_they_trained() -> None:
    adapter, trained = parse_seed_adapter(BLOB), oracle()["lora_none"]
    assert adapter.alpha == trained["alpha"]
    assert adapter.a_RK.shape == (4, 16)
    assert adapter.b_NR.shape == (48, 4)
    assert np.array_equal(adapter.a_RK.flatten().numpy(), np.float32(trained["final_A"]))
    assert np.array_equal(adapter.b_NR.flatten().numpy(), np.float32(trained["final_B"]))
    assert len(BLOB) == trained["footprint"]["adapterBytes"]
    assert serialize_seed_adapter(adapter) == BLOB


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 9),
    cols=st.integers(1, 9),
    rank=st.integers(1, 6),
    alpha=st.floats(0.125, 1e6, width=32),
    seed=st.integers(0, 2**31),
)
def test_any_adapter_makes_the_round_trip(rows: int, cols: int, rank: int, alpha: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a_RK, b_NR = (torch.randn(s, generator=generator) for s in ((rank, cols), (rows, rank)))
    read = parse_seed_adapter(serialize_seed_adapter(SeedAdapter(a_RK, b_NR, alpha)))
    assert torch.equal(read.a_RK, a_RK)
    assert torch.equal(read.b_NR, b_NR)
    assert read.alpha == alpha


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=64) | st.integers(0, len(BLOB) - 1).map(lambda n: BLOB[:n]))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(AdapterFormatError, match=r"^adapter blob: "):
        parse_seed_adapter(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0" + BLOB[1:], "magic"),
        (BLOB[:4] + struct.pack("<I", 49) + BLOB[8:], "size 1044 bytes, but its header asks for 1060"),
        (BLOB[:12] + struct.pack("<I", 0) + BLOB[16:], "rank 0"),
        (BLOB[:12] + struct.pack("<I", 600) + BLOB[16:], "rank 600: rank must be 1 to 512"),
        (BLOB[:16] + struct.pack("<f", float("nan")) + BLOB[20:], "alpha nan"),
        (BLOB[:20] + struct.pack("<f", float("inf")) + BLOB[24:], "B has a value that is not finite"),
        (BLOB[:-4] + struct.pack("<f", float("nan")), "A has a value that is not finite"),
        (BLOB + b"\0", "size 1045 bytes"),
    ],
)
def test_each_defect_is_named(data: bytes, words: str) -> None:
    with pytest.raises(AdapterFormatError, match=words):
        parse_seed_adapter(data)


def test_factors_that_do_not_multiply_are_not_written() -> None:
    with pytest.raises(AdapterFormatError, match=r"B \(3, 2\) and A \(4, 5\) do not multiply"):
        serialize_seed_adapter(SeedAdapter(torch.zeros(4, 5), torch.zeros(3, 2), 1.0))
