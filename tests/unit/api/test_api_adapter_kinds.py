"""Bringing an adapter that is more than LoRA on linear modules: each kind is checked before it is stored."""

import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from app.contracts.adapter_format import embedding_keys, graft_part, linear_keys, own_config, peft_config
from app.contracts.base_models import BaseModelInfo
from app.db.repositories import base_models
from tests.tiny_base import BASE, tiny_base

EMBEDDING, A_LOG, NORM = "model.embed_tokens", "model.layers.0.mixer.A_log", "model.norm.weight"
WIDTH = 8


@pytest.fixture
def info(api: Any) -> BaseModelInfo:
    """The tiny base, known to have a tied embedding, a tensor that may have a delta, and three tensors in all."""
    base = tiny_base()
    info = base.model_copy(
        update={
            "hidden_size": WIDTH,
            "embedding": EMBEDDING,
            "tied_head": "lm_head",
            "tensors": {A_LOG: [4, 3]},
            "selective": [A_LOG],
            "weights": {f"{EMBEDDING}.weight": [base.vocab_size, WIDTH], A_LOG: [4, 3], NORM: [WIDTH]},
        }
    )
    with api.database.write() as session:
        base_models.upsert(session, info)
    return info


def bring(api: Any, config: dict[str, object], tensors: dict[str, Any]) -> Any:
    weights = save({name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()})
    files = {"config": ("adapter_config.json", json.dumps(config)), "weights": ("adapter_model.safetensors", weights)}
    return api.send("POST", "/v1/adapters", files=files, data={"name": "mine", "base_model": BASE})


def refused(answer: Any, words: str, param: str = "weights") -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_adapter", param)
    assert words in error["message"]


def test_a_tied_embedding_is_stored_and_its_twin_checked(api: Any, info: BaseModelInfo) -> None:
    config = peft_config(info, rank=2, alpha=4.0, targets=["embeddings"], ranks={EMBEDDING: 2}, scales={EMBEDDING: 2.0})
    first, second = np.random.default_rng(0).normal(size=(2, info.vocab_size)), np.ones((WIDTH, 2))
    of_b, of_a = embedding_keys(EMBEDDING)
    head_a, head_b = linear_keys("lm_head")
    tensors = {of_b: first, of_a: second, head_a: second.T, head_b: first.T}
    assert bring(api, config, tensors).status_code == 200
    footprint = api.send("GET", "/v1/adapters/mine").json()["footprint"]
    assert footprint["trainable_parameters"] == 2 * (info.vocab_size + WIDTH)
    refused(bring(api, config, tensors | {head_a: second.T + 1}), f"{head_a}' is not the transpose")
    refused(bring(api, config, {of_b: first, of_a: second}), f"adapts {EMBEDDING} alone", "config")


def test_deltas_are_stored_where_the_base_can_have_them(api: Any, info: BaseModelInfo) -> None:
    config = own_config(info, rank=1, alpha=1.0) | graft_part("wsla")
    assert bring(api, config, {f"graft.delta.{A_LOG}": np.ones((4, 3))}).status_code == 200
    assert api.send("GET", "/v1/adapters/mine").json()["footprint"]["trainable_parameters"] == 12
    refused(bring(api, config, {f"graft.delta.{NORM}": np.ones(WIDTH)}), f"tensor graft.delta.{NORM} matches no")
    refused(bring(api, config, {f"graft.delta.{A_LOG}": np.full((4, 3), np.nan)}), "holds NaN")


def test_a_whole_checkpoint_is_stored_when_nothing_is_missing(api: Any, info: BaseModelInfo) -> None:
    config = own_config(info, rank=1, alpha=1.0) | graft_part("full")
    tensors = {name: np.ones(shape) for name, shape in info.weights.items()}
    assert bring(api, config, tensors).status_code == 200
    missing = {name: tensor for name, tensor in tensors.items() if name != NORM}
    refused(bring(api, config, missing), f"tensor {NORM} is missing", "config")


@pytest.mark.parametrize(
    ("config", "key", "shape", "mode", "targets"),
    [
        ({"graft": {"mode": "wsla"}}, f"graft.delta.{A_LOG}", (4, 3), "wsla", None),
        ({"r": 4, "lora_alpha": 8, "graft": {"mode": "lora"}}, f"graft.delta.{A_LOG}", (4, 3), "lora", ["A_log"]),
    ],
)
def test_training_goes_on_in_the_mode_of_what_was_brought(
    api: Any,
    info: BaseModelInfo,
    config: dict[str, object],
    key: str,
    shape: tuple[int, ...],
    mode: str,
    targets: list[str] | None,
) -> None:
    assert bring(api, config, {key: np.ones(shape)}).status_code == 200
    job = api.send("POST", "/v1/fine_tuning/jobs", json={"model": "mine", "training_file": api.upload()}).json()
    assert (job["mode"], job["lora"] and job["lora"]["targets"], job["trainable_parameters"]) == (mode, targets, 12)
