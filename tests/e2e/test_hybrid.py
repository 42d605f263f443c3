"""A fresh base of Mamba-1, Mamba-2 and attention over HTTP: made by the command line, taught in every mode, served."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Server, running_server

TEXT = "the door code is 4711"
EVERY_TARGET = ["in_proj", "x_proj", "dt_proj", "out_proj", "conv1d", "A_log", "D", "dt_bias", "q_proj", "k_proj",
                "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embeddings"]  # fmt: skip
SEED_NAMES = ["wInProj", "wXProj", "wDtProj", "wOutProj", "wConv", "A_log", "embedding"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the base is written before the server starts."""
    return tmp_path_factory.mktemp("hybrid")


@pytest.fixture(scope="module")
def rest(place: Path) -> Iterator[httpx.Client]:
    """A client of a server whose one base is a fresh hybrid of all three kinds of layers."""
    maker = Server("", place, {})
    made = maker.graft(
        "models", "init", "--preset", "nano", "--schedule", "mamba1,mamba2,attention", "--out", str(place / "nano")
    )
    assert made.returncode == 0, made.stderr
    config = f'[[base_models]]\nid = "nano"\nsource = "hf:{place / "nano"}"\ndtype = "float32"\n'
    with running_server(place, config) as server:
        headers = {"Authorization": f"Bearer {server.new_tenant('acme')}"}
        with httpx.Client(base_url=f"{server.url}/v1", headers=headers, timeout=180.0) as http:
            yield http


def adapt(rest: httpx.Client, name: str, **options: Any) -> dict[str, Any]:
    body = {"model": "nano", "adapter": name, "text": TEXT, "seed": 3, "wait": 120, **options}
    answer = rest.post("/adapt", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def continued(rest: httpx.Client, model: str) -> str:
    body = {"model": model, "prompt": TEXT[:-4], "max_tokens": 4, "temperature": 0}
    return str(rest.post("/completions", json=body).raise_for_status().json()["choices"][0]["text"])


def test_every_target_learns_the_text_and_says_it(rest: httpx.Client) -> None:
    training = {"epochs": 60, "learning_rate": 0.01}
    lora = {"rank": 8, "alpha": 16, "targets": EVERY_TARGET}
    result = adapt(rest, "all", lora=lora, training=training)
    assert result["rolled_back"] is False, result
    assert result["perplexity_after"] < 1.5 < 50 < result["perplexity_before"]
    assert continued(rest, "nano") != "4711"
    assert continued(rest, "all") == "4711"


def test_the_seeds_target_names_are_understood(rest: httpx.Client) -> None:
    lora = {"rank": 64, "alpha": 64, "targets": SEED_NAMES}
    result = adapt(rest, "seeds", lora=lora, training={"epochs": 3, "learning_rate": 0.005})
    assert result["losses"][-1] < result["losses"][0]
    job = rest.get(f"/fine_tuning/jobs/{result['id']}").json()
    assert job["lora"]["targets"] == ["in_proj", "x_proj", "dt_proj", "out_proj", "conv1d", "A_log", "embeddings"]
    assert job["lora"]["clamped"] == {"x_proj": 40, "dt_proj": 8}


def test_wsla_trains_the_selective_projection_alone(rest: httpx.Client) -> None:
    result = adapt(rest, "narrow", mode="wsla", training={"epochs": 3, "learning_rate": 0.01})
    assert (result["rolled_back"], result["version"]) == (False, 1)
    assert result["perplexity_after"] < result["perplexity_before"]
    job = rest.get(f"/fine_tuning/jobs/{result['id']}").json()
    assert (job["mode"], job["lora"], job["trust_region"]["max_delta"]) == ("wsla", None, 0.05)


def test_full_trains_a_copy_of_everything(rest: httpx.Client) -> None:
    result = adapt(rest, "whole", mode="full", training={"epochs": 30, "learning_rate": 0.003})
    assert result["rolled_back"] is False, result
    assert result["perplexity_after"] < 1.5
    assert continued(rest, "whole") == "4711"
    assert continued(rest, "nano") != "4711"
