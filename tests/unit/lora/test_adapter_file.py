"""Adapters go into a file and come back the same, whatever kind they are; a file that lies is refused by name."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from safetensors.torch import load
from safetensors.torch import save as save_torch

from app.contracts.adapter_format import AdapterFormatError, embedding_keys, linear_keys
from app.contracts.base_models import BaseModelInfo
from tests.tiny_base import tiny_base
from workers.lora.adapter import AdapterWeights
from workers.lora.adapter_file import from_peft, to_peft

Q, EMBEDDING, A_LOG = "model.layers.0.self_attn.q_proj", "model.embed_tokens", "model.layers.0.mixer.A_log"


@pytest.fixture(scope="module")
def info() -> BaseModelInfo:
    """A tied base with one tensor that may have a delta and three tensors in all."""
    base = tiny_base()
    shapes = {f"{Q}.weight": [32, 32], f"{EMBEDDING}.weight": [base.vocab_size, 32], A_LOG: [4, 3]}
    return base.model_copy(
        update={
            "hidden_size": 32,
            "embedding": EMBEDDING,
            "tied_head": "lm_head",
            "tensors": {A_LOG: [4, 3]},
            "weights": shapes,
        }
    )


def adapter(tensors: dict[str, tuple[torch.Tensor, torch.Tensor]], **more: object) -> AdapterWeights:
    """Return an adapter of rank 3 and alpha 6 with these factors."""
    values = {"alpha": 6.0, "rank": 3, "targets": [], **more}
    return AdapterWeights(tensors=tensors, scales=dict.fromkeys(tensors, 2.0), **values)


def pair(outputs: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random A and B of rank 3."""
    return torch.randn(3, inputs), torch.randn(outputs, 3)


def same(one: AdapterWeights, other: AdapterWeights) -> None:
    """Fail unless both hold the same numbers under the same names."""
    assert one.tensors.keys() == other.tensors.keys()
    for name, factors in one.tensors.items():
        assert all(torch.equal(x, y) for x, y in zip(factors, other.tensors[name], strict=True)), name
    for mine, theirs in ((one.dense, other.dense), (one.own, other.own)):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
    assert (one.scales, one.alpha, one.rank, one.targets) == (other.scales, other.alpha, other.rank, other.targets)


def kinds(info: BaseModelInfo) -> dict[str, AdapterWeights]:
    """Return one adapter of each kind."""
    embedding, delta = pair(info.vocab_size, 32), torch.randn(4, 3)
    own = {name: torch.randn(*shape) for name, shape in info.weights.items()}
    q_of_both = {f"model.layers.{i}.self_attn.q_proj": pair(32, 32) for i in range(2)}
    return {
        "embedding": adapter({EMBEDDING: embedding}, targets=["embeddings"]),
        "beside": adapter(q_of_both, targets=["q_proj", "A_log"], dense={A_LOG: delta}),
        "delta alone": adapter({}, targets=["A_log"], dense={A_LOG: delta}),
        "wsla": adapter({}, dense={A_LOG: delta}),
        "full": adapter({}, own=own),
    }


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("embedding", None), ("beside", "lora"), ("delta alone", "lora"), ("wsla", "wsla"), ("full", "full")],
)
def test_every_kind_comes_back(info: BaseModelInfo, kind: str, mode: str | None) -> None:
    given = kinds(info)[kind]
    config, data = to_peft(given, info)
    same(given, from_peft(config, data, info))
    assert config.get("graft") == (mode and {"mode": mode})
    assert ("peft_type" in config) == bool(given.tensors)
    assert to_peft(given, info) == (config, data)


def test_a_whole_checkpoint_has_plain_names(info: BaseModelInfo) -> None:
    assert load(to_peft(kinds(info)["full"], info)[1]).keys() == info.weights.keys()


def test_a_tied_head_must_say_what_the_embedding_says(info: BaseModelInfo) -> None:
    config, data = to_peft(kinds(info)["embedding"], info)
    tensors = load(data)
    head_a, head_b = linear_keys("lm_head")
    assert tensors.keys() == {*embedding_keys(EMBEDDING), head_a, head_b}
    tensors[head_a][0, 0] += 1e-3
    with pytest.raises(AdapterFormatError, match="is not the transpose of") as caught:
        from_peft(config, save_torch(tensors), info)
    assert caught.value.tensor == head_a


def test_some_modules_of_a_kind_are_named_in_full(info: BaseModelInfo) -> None:
    config, data = to_peft(adapter({Q: pair(32, 32)}, targets=[Q]), info)
    assert config["target_modules"] == [Q]
    assert from_peft(config, data, info).targets == [Q]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_a_value_that_is_not_finite_is_refused(info: BaseModelInfo, bad: float) -> None:
    config, _ = to_peft(kinds(info)["wsla"], info)
    values = np.ones((4, 3))
    values[2, 1] = bad
    with pytest.raises(AdapterFormatError, match=f"{A_LOG} holds a value that is not finite") as caught:
        from_peft(config, save({f"graft.delta.{A_LOG}": values}), info)
    assert caught.value.tensor == f"graft.delta.{A_LOG}"


def test_integers_are_refused(info: BaseModelInfo) -> None:
    config, _ = to_peft(kinds(info)["wsla"], info)
    with pytest.raises(AdapterFormatError, match=r"has type torch\.int64"):
        from_peft(config, save({f"graft.delta.{A_LOG}": np.ones((4, 3), np.int64)}), info)


@pytest.mark.parametrize("data", [b"", b"\x80\x04\x95pickle", b"PK\x03\x04" + b"0" * 64, b"\xff" * 32])
def test_other_files_are_refused(info: BaseModelInfo, data: bytes) -> None:
    with pytest.raises(AdapterFormatError, match="not a safetensors file"):
        from_peft({}, data, info)
