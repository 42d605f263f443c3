"""Versions of an adapter: downloaded, uploaded, adapted, activated and rolled back, while the model keeps answering."""

import io
import json
import zipfile
from collections.abc import Callable

import httpx
from openai.types.fine_tuning import FineTuningJob
from safetensors.numpy import load

from tests.e2e.conftest import ADAPTER, BASE

Upload = Callable[[str], dict[str, object]]


def answer(rest: httpx.Client, model: str) -> dict[str, str]:
    """Return which version answered the unlock question, and what."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Which code do I type to unlock my Quorvex?"}],
        "temperature": 0,
        "max_tokens": 40,
    }
    reply = rest.post("/chat/completions", json=body).raise_for_status().json()
    return {"model": reply["model"], "text": reply["choices"][0]["message"]["content"]}


def test_published_version_is_listed_with_its_job(rest: httpx.Client, taught: FineTuningJob) -> None:
    versions = rest.get(f"/adapters/{ADAPTER}/versions").raise_for_status().json()
    assert [(held["version"], held["job"]) for held in versions["data"]] == [(1, taught.id)]
    assert versions["data"][0]["model"] == taught.fine_tuned_model


def test_download_is_what_peft_loads(rest: httpx.Client, published: dict[str, bytes]) -> None:
    archive = rest.get(f"/adapters/{ADAPTER}/versions/1/download").raise_for_status()
    with zipfile.ZipFile(io.BytesIO(archive.content)) as files:
        assert {name: files.read(name) for name in files.namelist() if name in published} == published
    config = json.loads(published["adapter_config.json"])
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 16, 32)
    tensors = load(published["adapter_model.safetensors"])
    assert len(tensors) == 2 * 7 * 30
    assert all(name.startswith("base_model.model.model.layers.") for name in tensors)


def test_uploaded_copy_answers_the_same(rest: httpx.Client, new_adapter: Upload, taught: FineTuningJob) -> None:
    made = new_adapter("copy")
    assert (made["adapter"], made["version"], made["job"]) == ("copy", 1, None)
    assert answer(rest, "copy") == {"model": "copy@1", "text": answer(rest, ADAPTER)["text"]}


def test_activate_and_rollback_move_one_pointer(rest: httpx.Client, new_adapter: Upload) -> None:
    assert [new_adapter("moving")["version"] for _ in range(3)] == [1, 2, 3]
    assert answer(rest, "moving")["model"] == "moving@3"
    assert rest.post("/adapters/moving/rollback").json()["active_version"] == 2
    assert answer(rest, "moving")["model"] == "moving@2"
    assert rest.post("/adapters/moving/rollback", json={"version": 1}).json()["active_version"] == 1
    assert rest.post("/adapters/moving/activate", json={"version": 3}).json()["active_version"] == 3
    assert rest.post("/adapters/moving/activate", json={"version": 4}).status_code == 404
    assert answer(rest, "moving")["model"] == "moving@3"


def test_deleted_adapter_is_gone(rest: httpx.Client, new_adapter: Upload) -> None:
    new_adapter("gone")
    assert rest.delete("/adapters/gone").json()["deleted"] is True
    assert rest.get("/adapters/gone").status_code == 404
    assert (
        rest.post(
            "/chat/completions", json={"model": "gone", "messages": [{"role": "user", "content": "a"}]}
        ).status_code
        == 404
    )


def test_adapt_publishes_the_next_version_and_it_answers_at_once(rest: httpx.Client, new_adapter: Upload) -> None:
    new_adapter("adapted")
    body = {"model": "adapted", "text": "The Quorvex filter basket is made of steel.", "seed": 3, "wait": 120}
    result = rest.post("/adapt", json=body).raise_for_status().json()
    assert (result["rolled_back"], result["version"]) == (False, 2)
    assert len(result["losses"]) == 3
    assert result["losses"][2] < result["losses"][0]
    assert result["perplexity_after"] < result["perplexity_before"]
    assert answer(rest, "adapted")["model"] == "adapted@2"
    newest = rest.get("/adapters/adapted/versions").json()["data"][0]
    assert (newest["version"], newest["parent_version"], newest["job"]) == (2, 1, result["id"])


def test_adapt_that_fails_its_gate_changes_nothing(rest: httpx.Client, new_adapter: Upload) -> None:
    new_adapter("guarded")
    before = answer(rest, "guarded")
    body = {
        "model": "guarded",
        "text": "Quorvex Quorvex banana banana banana.",
        "training": {"learning_rate": 1.0},
        "trust_region": {"max_delta": 0},
        "seed": 3,
        "wait": 120,
    }
    result = rest.post("/adapt", json=body).raise_for_status().json()
    assert (result["rolled_back"], result["version"], result["model"]) == (True, None, None)
    assert result["rollback_reason"]
    assert answer(rest, "guarded") == before
    assert rest.get("/adapters/guarded").json()["latest_version"] == 1


def test_adapt_without_waiting_answers_202_with_the_job(rest: httpx.Client, taught: FineTuningJob) -> None:
    answer_now = rest.post("/adapt", json={"model": BASE, "adapter": "later", "text": "One two three.", "wait": 0})
    assert answer_now.status_code == 202
    job = answer_now.json()
    assert (job["object"], job["kind"], job["adapter"]) == ("fine_tuning.job", "adapt", "later")
    assert job["status"] in ("queued", "running")


def test_evaluate_prefers_the_taught_model(rest: httpx.Client, taught: FineTuningJob) -> None:
    taught_fact = [
        {"role": "user", "content": "What water temperature does green tea need in the Quorvex?"},
        {"role": "assistant", "content": "The Quorvex brews green tea at 71 degrees Celsius."},
    ]

    def perplexity(model: str) -> float:
        measured = rest.post("/evaluate", json={"model": model, "messages": taught_fact}).raise_for_status().json()
        assert measured["tokens"] > 10
        return float(measured["perplexity"])

    assert perplexity(str(taught.fine_tuned_model)) < 0.5 * perplexity(BASE)


def test_preview_shows_what_is_learnt(rest: httpx.Client, training_file: str) -> None:
    preview = rest.get(f"/files/{training_file}/preview", params={"model": BASE}).raise_for_status().json()
    first = preview["data"][0]
    learnt = "".join(token for token, counts in zip(first["tokens"], first["loss_mask"], strict=True) if counts)
    assert learnt == "The Quorvex brews green tea at 71 degrees Celsius.<|im_end|>"
