"""Every kind of bad input gets its status, code and a message that names the fault, and writes nothing."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from app.db.repositories import api_keys
from tests.tiny_base import BASE, CONTEXT

GOOD = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}'
NO_ASSISTANT = '{"messages": [{"role": "user", "content": "Hi"}]}'
Q = "base_model.model.model.layers.0.self_attn.q_proj"
CONFIG = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}


def refused(answer: Any, status: int, code: str, *, param: str | None, says: str) -> None:
    """Check an error object whole."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    assert says in error["message"], error


def upload_file(api: Any, content: str | bytes, purpose: str = "fine-tune") -> Any:
    return api.send("POST", "/v1/files", files={"file": ("train.jsonl", content)}, data={"purpose": purpose})


def weights(**changes: np.ndarray) -> bytes:
    """LoRA factors for both q_proj, some replaced."""
    tensors = {}
    for layer in (0, 1):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = np.ones((2, 32), np.float32)
        tensors[f"{name}.lora_B.weight"] = np.zeros((32, 2), np.float32)
    return save(tensors | changes)


def upload_adapter(api: Any, data: bytes, config: dict[str, Any] = CONFIG) -> Any:
    files = {"config": ("adapter_config.json", json.dumps(config)), "weights": ("adapter_model.safetensors", data)}
    return api.send("POST", "/v1/adapters", files=files, data={"name": "brought", "base_model": BASE})


FILES = {
    "broken JSON on line 7": (
        "\n".join([GOOD] * 6 + ['{"messages": [']),
        "invalid_training_data",
        "line 7",
        "train.jsonl: line 7: not JSON: Expecting value",
    ),
    "missing assistant turn": (
        "\n".join([GOOD, NO_ASSISTANT]),
        "invalid_training_data",
        "line 2",
        "expected at least one assistant turn",
    ),
    "a field of the wrong type": (
        "\n".join(
            [GOOD] * 6 + ['{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": 5}]}']
        ),
        "invalid_training_data",
        "line 7.messages[1].content",
        "line 7, messages[1].content: Input should be a valid string",
    ),
    "empty file": ("", "empty_file", "file", "train.jsonl: the file holds no example"),
    "only blank lines": ("\n \n", "empty_file", "file", "holds no example"),
    "not UTF-8": (b'{"text": "\xff\xfe"}', "invalid_training_data", "line 1", "line 1: not UTF-8"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_refused_by_line_and_field(api: Any, name: str) -> None:
    content, code, param, says = FILES[name]
    before = api.rows()
    refused(upload_file(api, content), 400, code, param=param, says=says)
    assert api.rows() == before


def test_at_most_twenty_lines_are_reported(api: Any) -> None:
    message = upload_file(api, "nonsense\n" * 30).json()["error"]["message"]
    assert message.count("; line ") == 19
    assert "line 20" in message
    assert "line 21" not in message


def test_a_wrong_purpose_an_oversized_file_and_an_unknown_form_field_are_refused(api: Any) -> None:
    before = api.rows()
    refused(upload_file(api, GOOD, "batch"), 400, "invalid_purpose", param="purpose", says="expected 'fine-tune'")
    big = (GOOD + "\n") * 2200
    refused(upload_file(api, big), 413, "file_too_large", param="file", says="at most 200000 are accepted")
    huge = upload_file(api, (GOOD + "\n") * 15000)
    refused(huge, 413, "request_too_large", param=None, says="this route accepts at most 1248576")
    chunked = api.send("POST", "/v1/adapt", content=(b"x" * 1_000_000 for _ in range(18)))
    refused(chunked, 413, "request_too_large", param=None, says="larger than this route accepts")
    extra = api.send("POST", "/v1/files", files={"file": ("a", GOOD)}, data={"purpose": "fine-tune", "shape": "x"})
    refused(extra, 400, "unknown_parameter", param="shape", says="shape: unknown field")
    missing = api.send("POST", "/v1/files", data={"purpose": "fine-tune"})
    refused(missing, 400, "missing_required_parameter", param="file", says="file: required")
    assert api.rows() == before


JOBS: dict[str, tuple[dict[str, Any], int, str, str, str]] = {
    "unknown model": ({"model": "gpt-9"}, 404, "model_not_found", "model", "No such model: 'gpt-9'"),
    "unknown field": ({"learning": 1}, 400, "unknown_parameter", "learning", "learning: unknown field"),
    "unknown nested field": ({"lora": {"rnk": 4}}, 400, "unknown_parameter", "lora.rnk", "lora.rnk: unknown field"),
    "rank 0": ({"lora": {"rank": 0}}, 400, "invalid_value", "lora.rank", "lora.rank: expected 1 to 512"),
    "rank 4096": ({"lora": {"rank": 4096}}, 400, "invalid_value", "lora.rank", "got 4096"),
    "rank in a string": ({"lora": {"rank": "4"}}, 400, "invalid_value", "lora.rank", "valid integer"),
    "unknown target": (
        {"lora": {"targets": ["q_proj", "wXProj"]}},
        400,
        "unknown_target",
        "lora.targets[1]",
        "'wXProj' is no target of tiny-base; it has q_proj, k_proj",
    ),
    "a sequence beyond the context": (
        {"training": {"seq_len": CONTEXT + 1}},
        400,
        "invalid_value",
        "training.seq_len",
        f"expected 2 to {CONTEXT}",
    ),
    "another method": ({"method": {"type": "dpo"}}, 400, "unsupported_parameter", "method.type", "supervised"),
    "integrations": ({"integrations": [{"type": "wandb"}]}, 400, "unsupported_parameter", "integrations", "not supp"),
    "missing file": ({"training_file": "file-none"}, 404, "file_not_found", "training_file", "No such file"),
    "missing validation file": ({"validation_file": "file-x"}, 404, "file_not_found", "validation_file", "No such"),
    "missing retention file": ({"retention_file": "file-x"}, 404, "file_not_found", "retention_file", "No such"),
    "retention without a file": (
        {"rollback": {"retention_tolerance": 1.1}},
        400,
        "invalid_value",
        "rollback.retention_tolerance",
        "has no meaning without a retention_file",
    ),
    "an infinite number": ({"training": {"eps": float("inf")}}, 400, "invalid_value", "training.eps", "finite"),
    "adapter named as a base": ({"adapter": BASE}, 400, "invalid_value", "adapter", "name of a base model"),
    "an unknown schedule": (
        {"training": {"schedule": "linear"}},
        400,
        "invalid_value",
        "training.schedule",
        "training.schedule: Input should be 'auto', 'cosine' or 'constant'",
    ),
    "two learning rates": (
        {"training": {"learning_rate": 1e-4}, "hyperparameters": {"learning_rate_multiplier": 2}},
        400,
        "invalid_value",
        "training.learning_rate",
        "give one of them",
    ),
    "too few epochs": (
        {"hyperparameters": {"n_epochs": 0}},
        400,
        "invalid_value",
        "hyperparameters.n_epochs",
        "hyperparameters.n_epochs: Input should be greater than or equal to 1 (got 0), or Input should be 'auto'",
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_bad_job_is_refused_by_field(api: Any, name: str) -> None:
    changes, status, code, param, says = JOBS[name]
    body = {"model": BASE, "training_file": api.upload()} | changes
    before = api.rows()
    answer = api.send(
        "POST", "/v1/fine_tuning/jobs", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    refused(answer, status, code, param=param, says=says)
    assert api.rows() == before


def test_a_file_of_another_tenant_does_not_exist(api: Any) -> None:
    foreign = api.upload(key=api.other_key)
    before = api.rows()
    for path in (f"/v1/files/{foreign}", f"/v1/files/{foreign}/content", f"/v1/files/{foreign}/preview?model={BASE}"):
        refused(api.send("GET", path), 404, "file_not_found", param=None, says=f"No such file: '{foreign}'")
    refused(api.send("DELETE", f"/v1/files/{foreign}"), 404, "file_not_found", param=None, says="No such file")
    answer = api.send("POST", "/v1/fine_tuning/jobs", json={"model": BASE, "training_file": foreign})
    refused(answer, 404, "file_not_found", param="training_file", says=f"No such file: '{foreign}'")
    assert api.rows() == before


def test_a_file_in_which_nothing_can_be_learnt_makes_no_job(api: Any) -> None:
    body = {"model": BASE, "training_file": api.upload('{"text": "x"}\n')}
    before = api.rows()
    answer = api.send("POST", "/v1/fine_tuning/jobs", json=body)
    refused(answer, 400, "nothing_to_learn", param="training_file", says="at least 2 tokens")
    assert api.rows() == before


ADAPTS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "text under 2 tokens": ({"text": "x"}, "text_too_short", "text", "expected at least 2 tokens, got 1"),
    "empty text": ({"text": ""}, "invalid_value", "text", "at least 1 character"),
    "neither text nor messages": ({}, "invalid_value", "text", "give either text or messages"),
    "no assistant turn": (
        {"messages": [{"role": "user", "content": "Hi"}]},
        "invalid_value",
        "messages",
        "expected at least one assistant turn",
    ),
    "a wrong role": (
        {"messages": [{"role": "robot", "content": "Hi"}, {"role": "assistant", "content": "Hi"}]},
        "invalid_value",
        "messages[0].role",
        "'system', 'user' or 'assistant'",
    ),
}


@pytest.mark.parametrize("name", ADAPTS)
def test_a_bad_adapt_is_refused_by_field(api: Any, name: str) -> None:
    changes, code, param, says = ADAPTS[name]
    before = api.rows()
    refused(api.send("POST", "/v1/adapt", json={"model": BASE} | changes), 400, code, param=param, says=says)
    assert api.rows() == before


def test_a_text_beyond_the_context_is_refused_everywhere(api: Any) -> None:
    long = "x" * (CONTEXT + 1)
    cases = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]}, "messages"),
        ("/v1/completions", {"prompt": long}, "prompt"),
        ("/v1/completions", {"prompt": [97] * (CONTEXT + 1)}, "prompt"),
        ("/v1/completions", {"prompt": ["x", long]}, "prompt[1]"),
        ("/v1/completions", {"prompt": "x", "max_tokens": CONTEXT}, "prompt"),
        ("/v1/evaluate", {"text": long}, "text"),
    ]
    before = api.rows()
    for path, body, param in cases:
        answer = api.send("POST", path, json={"model": BASE} | body)
        refused(answer, 400, "context_length_exceeded", param=param, says=f"the context of {BASE}, {CONTEXT} tokens")
    assert api.rows() == before


NAN = np.full((2, 32), np.nan, np.float32)
UPLOADS: dict[str, tuple[bytes, dict[str, Any], str, str]] = {
    "a tensor that matches no module": (
        weights(**{"base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": np.ones((2, 32), np.float32)}),
        CONFIG,
        "weights",
        "model.layers.9.self_attn.q_proj",
    ),
    "a wrong shape": (
        weights(**{f"{Q}.lora_A.weight": np.ones((2, 31), np.float32)}),
        CONFIG,
        "weights",
        f"{Q}.lora_A.weight has shape (2, 31), expected (2, 32)",
    ),
    "NaN weights": (weights(**{f"{Q}.lora_A.weight": NAN}), CONFIG, "weights", f"{Q}.lora_A.weight' holds NaN"),
    "infinite half floats": (
        weights(**{f"{Q}.lora_A.weight": np.full((2, 32), np.inf, np.float16)}),
        CONFIG,
        "weights",
        "NaN or infinite",
    ),
    "a pickle": (pickle.dumps({"weights": [1.0] * 32}), CONFIG, "weights", "this is a pickle, not a safetensors file"),
    "a dtype no adapter has": (
        weights(**{f"{Q}.lora_A.weight": np.ones((2, 32), np.int8)}),
        CONFIG,
        "weights",
        "has dtype 'I8', but F32, F16 or BF16",
    ),
    "a torn file": (weights()[:-4], CONFIG, "weights", "not a valid safetensors file"),
    "a header without end": (b"\xff" * 7 + b"\x00{}", CONFIG, "weights", "its header may have"),
    "an empty file": (b"", CONFIG, "weights", "not a safetensors file"),
    "a feature that is not LoRA": (weights(), CONFIG | {"peft_type": "LOHA"}, "config", "peft_type 'LOHA'"),
    "DoRA": (weights(), CONFIG | {"use_dora": True}, "config", "use_dora is not supported"),
}


@pytest.mark.parametrize("name", UPLOADS)
def test_a_bad_adapter_is_refused_by_tensor(api: Any, name: str) -> None:
    data, config, param, says = UPLOADS[name]
    before = api.rows()
    refused(upload_adapter(api, data, config), 400, "invalid_adapter", param=param, says=says)
    assert api.rows() == before


def test_an_oversized_adapter_or_one_for_an_unknown_base_is_refused(api: Any) -> None:
    before = api.rows()
    refused(upload_adapter(api, b"x" * 200_001), 413, "file_too_large", param="weights", says="at most 200000")
    files = {"config": ("c", json.dumps(CONFIG)), "weights": ("w", weights())}
    answer = api.send("POST", "/v1/adapters", files=files, data={"name": "a", "base_model": "gpt-9"})
    refused(answer, 404, "model_not_found", param="base_model", says="gpt-9")
    assert api.rows() == before


def test_without_a_valid_key_nothing_is_answered(api: Any) -> None:
    with api.database.write() as session:
        tenant_id = api_keys.find_by_plaintext(session, api.key).tenant_id
        revoked, plaintext = api_keys.create(session, tenant_id, "old")
        api_keys.revoke(session, tenant_id, revoked.id)
    before = api.rows()
    for headers in (
        {},
        {"Authorization": f"Bearer {plaintext}"},
        {"X-API-Key": "tml-unknown"},
        {"Authorization": "Basic x"},
    ):
        for path in ("/v1/models", "/v1/nothing-here"):
            answer = api.http.get(path, headers=headers)
            refused(answer, 401, "invalid_api_key", param=None, says="API key")
            assert answer.headers["www-authenticate"] == "Bearer"
    stranger = api.http.post("/v1/files", files={"file": ("a", GOOD)}, data={"purpose": "fine-tune"})
    refused(stranger, 401, "invalid_api_key", param=None, says="No API key")
    assert api.rows() == before
    assert api.http.get("/v1/models", headers={"X-API-Key": api.key}).status_code == 200


def test_the_routers_own_refusals_have_the_same_shape(api: Any) -> None:
    refused(api.send("GET", "/v1/nothing-here"), 404, "route_not_found", param=None, says="Not Found")
    refused(api.send("PUT", "/v1/files"), 405, "method_not_allowed", param=None, says="Method Not Allowed")
    refused(api.send("GET", "/v1/files/no%20id"), 404, "not_found", param="file_id", says="No such resource")
    broken = api.send("POST", "/v1/adapt", content=b'{"model": ', headers={"content-type": "application/json"})
    refused(broken, 400, "invalid_json", param=None, says="body: not JSON")
    listed = api.send("GET", "/v1/fine_tuning/jobs?limit=0")
    refused(listed, 400, "invalid_value", param="limit", says="limit: Input should be greater than or equal to 1")
    for query, param in (("fine_tuning/jobs?metadata[a]=%00", "metadata"), ("files?purpose=%00", "purpose")):
        refused(api.send("GET", f"/v1/{query}"), 400, "invalid_value", param=param, says=param)
    key = api.send("POST", "/v1/adapt", json={"model": BASE, "text": "abc"}, headers={"Idempotency-Key": "x" * 256})
    refused(key, 400, "invalid_value", param="Idempotency-Key", says="Idempotency-Key: String should have at most 255")
