"""Embeddings against a worker at the bus edge: OpenAI's forms, limits and failures."""

import base64
import json
import math
import struct
from typing import Any

import pytest

from app.contracts.inference import ErrorEvent
from app.services import embeddings
from app.text.tokenizer import tokenizer_for
from tests.job_outcomes import publish
from tests.tiny_base import BASE, CONTEXT, tiny_base

TENTH = struct.unpack("<f", struct.pack("<f", 0.1))[0]
AB = tokenizer_for(tiny_base()).encode("ab")


JSON = {"content-type": "application/json"}


def embed(api: Any, **body: Any) -> Any:
    return api.send("POST", "/v1/embeddings", json={"model": BASE} | body)


@pytest.mark.parametrize("given", ["ab", ["ab"], AB, [AB]], ids=["text", "texts", "tokens", "token lists"])
def test_any_form_of_input_is_one_request(api: Any, worker: Any, given: Any) -> None:
    answer = embed(api, input=given, user="me")
    assert answer.json() == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [2, AB[0], TENTH]}],
        "model": BASE,
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }
    assert [request.sequences for request in worker.requests] == [[AB]]
    assert worker.requests[0].adapter is None


def test_vectors_are_in_the_order_of_the_inputs_and_base64_is_little_endian_float32(api: Any, worker: Any) -> None:
    answer = embed(api, input=["a", "ab", "abc"], encoding_format="base64").json()
    vectors = [struct.unpack("<3f", base64.b64decode(item["embedding"])) for item in answer["data"]]
    assert vectors == [(length, AB[0], TENTH) for length in (1, 2, 3)]
    assert [item["index"] for item in answer["data"]] == [0, 1, 2]
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6}


def test_an_adapter_is_pinned_to_its_version(api: Any, worker: Any) -> None:
    worker.finish_job = publish
    body = {"model": BASE, "text": "Some text", "adapter": "mine", "wait": 10}
    assert api.send("POST", "/v1/adapt", json=body).status_code == 200
    for name in ("mine", "mine@1"):
        assert embed(api, model=name, input="ab").json()["model"] == "mine@1"
    [version] = api.send("GET", "/v1/adapters/mine/versions").json()["data"]
    assert [request.adapter.version_id for request in worker.requests] == [version["id"]] * 2
    stranger = api.send("POST", "/v1/embeddings", key=api.other_key, json={"model": "mine", "input": "ab"})
    assert (stranger.status_code, stranger.json()["error"]["code"]) == (404, "model_not_found")


FORMS = "expected a string, token ids, or a list of up to 2048 strings"
BAD: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "an empty text": ({"input": ""}, "invalid_value", "input", "at least one token"),
    "an empty text among others": ({"input": ["a", ""]}, "invalid_value", "input[1]", "at least one token"),
    "no token ids among others": ({"input": [[1], []]}, "invalid_value", "input[1]", "at least one token"),
    "no input": ({"input": []}, "invalid_value", "input", FORMS),
    "a mixture": ({"input": [1, "a"]}, "invalid_value", "input", FORMS),
    "an object": ({"input": {"text": "a"}}, "invalid_value", "input", FORMS),
    "too many": ({"input": ["a"] * 2049}, "invalid_value", "input", FORMS),
    "an unknown token": ({"input": [[1], [1, 999]]}, "invalid_value", "input[1]", "input[1][1]: expected a token id"),
    "beyond the context": ({"input": "x" * (CONTEXT + 1)}, "context_length_exceeded", "input", f"{CONTEXT} tokens"),
    "no input at all": ({}, "missing_required_parameter", "input", "required"),
    "no text": ({"input": "\udfff"}, "invalid_value", "input[0]", "surrogate"),
    "dimensions": ({"input": "a", "dimensions": 8}, "unsupported_parameter", "dimensions", "is not supported"),
    "another format": ({"input": "a", "encoding_format": "int8"}, "invalid_value", "encoding_format", "'base64'"),
    "an unknown field": ({"input": "a", "shape": 1}, "unknown_parameter", "shape", "unknown field"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_field(api: Any, name: str) -> None:
    changes, code, param, says = BAD[name]
    answer = api.send("POST", "/v1/embeddings", content=json.dumps({"model": BASE} | changes), headers=JSON)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param)
    assert says in error["message"]


def test_all_inputs_together_are_bounded(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "MAX_TOKENS", 5)
    error = embed(api, input=["abc", "de", "f"]).json()["error"]
    assert (error["code"], error["param"]) == ("input_too_long", "input")
    assert "more than 5 tokens by input[2]" in error["message"]


def test_a_worker_that_fails_or_computes_no_numbers_is_an_error(api: Any, worker: Any) -> None:
    worker.third_of_embeddings = math.nan
    error = embed(api, input="ab").json()["error"]
    assert (error["code"], error["param"]) == ("not_finite", "model")
    worker.error = ErrorEvent(status=503, code="interrupted", message="try again")
    answer = embed(api, input="ab")
    assert (answer.status_code, answer.json()["error"]["code"], answer.headers["retry-after"]) == (
        503,
        "interrupted",
        "5",
    )
    worker.stop()


def test_without_a_worker_nothing_waits(api: Any) -> None:
    answer = embed(api, input="ab")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker")
