"""Adapt and evaluate: the waited-for answer, the 202, the failed gate, continuing, retries."""

from typing import Any

import pytest

from tests.job_outcomes import fail, publish, roll_back
from tests.tiny_base import BASE

TALK = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me"}]


def adapt(api: Any, *, headers: dict[str, str] | None = None, **body: Any) -> Any:
    return api.send("POST", "/v1/adapt", json={"model": BASE, "wait": 20} | body, headers=headers or {})


@pytest.mark.parametrize("body", [{"text": "A fact."}, {"messages": TALK}], ids=["text", "messages"])
def test_an_adapt_answers_with_its_outcome_and_serves_the_new_version(api: Any, worker: Any, body: Any) -> None:
    worker.finish_job = publish
    answer = adapt(api, adapter="facts", **body)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    assert content["losses"] == [2.5, 1.5, 1.0]
    assert (content["perplexity_before"], content["perplexity_after"], content["grad_norm"]) == (9.0, 3.0, 0.7)
    assert (content["rolled_back"], content["rollback_reason"], content["duration_ms"]) == (False, None, 123)
    assert (content["adapter"], content["version"]) == ("facts", 1)
    chat = api.send("POST", "/v1/chat/completions", json={"model": content["model"], "messages": TALK[:1]})
    assert chat.json()["model"] == content["model"]
    assert worker.requests[-1].adapter.version_id
    by_name = api.send("POST", "/v1/chat/completions", json={"model": "facts", "messages": TALK[:1]})
    assert by_name.json()["model"] == "facts@1"
    assert worker.requests[-1].adapter == worker.requests[-2].adapter


def test_a_failed_gate_is_an_answer_and_publishes_nothing(api: Any, worker: Any) -> None:
    worker.finish_job = roll_back
    content = adapt(api, text="A fact.").json()
    assert (content["rolled_back"], content["version"], content["model"]) == (True, None, None)
    assert content["rollback_reason"] == "perplexity rose from 9.0 to 20.0"
    assert api.rows()["adapter_versions"] == 0
    job = api.send("GET", f"/v1/fine_tuning/jobs/{content['id']}").json()
    assert (job["status"], job["fine_tuned_model"], job["result"]["rolled_back"]) == ("succeeded", None, True)


def test_without_waiting_the_job_is_handed_back(api: Any) -> None:
    answer = adapt(api, text="A fact.", wait=0, metadata={"who": "me"}, lora={"rank": 4, "targets": ["q_proj"]})
    assert answer.status_code == 202
    job = answer.json()
    assert (job["kind"], job["status"], job["training_file"], job["metadata"]) == (
        "adapt",
        "queued",
        None,
        {"who": "me"},
    )
    assert job["training"]["epochs"] == 3
    assert job["trust_region"] == {"max_delta": 0.05, "max_relative_update": None}
    assert job["rollback"] == {"enabled": True, "tolerance": 1.25, "retention_tolerance": None}
    assert job["trainable_parameters"] == 2 * 4 * (32 + 32)
    assert job["optimizer_state_bytes"] == 8 * job["trainable_parameters"]
    assert api.send("GET", f"/v1/fine_tuning/jobs/{job['id']}").json() == job


def test_a_failed_run_says_why(api: Any, worker: Any) -> None:
    worker.finish_job = fail
    answer = adapt(api, text="A fact.")
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("training_error", "no_gradient")
    assert "q_proj got none" in error["message"]


def test_a_second_adapt_continues_the_first_and_keeps_its_shape(api: Any, worker: Any) -> None:
    worker.finish_job = publish
    first = adapt(api, text="A fact.", adapter="facts", lora={"rank": 4, "alpha": 8.0, "targets": ["q_proj"]}).json()
    second = adapt(api, text="Another.", model="facts").json()
    assert (first["version"], second["version"], second["adapter"]) == (1, 2, "facts")
    listed = api.send("GET", "/v1/adapters/facts/versions").json()["data"]
    assert [(v["version"], v["parent_version"]) for v in listed] == [(2, 1), (1, None)]
    job = api.send("GET", f"/v1/fine_tuning/jobs/{second['id']}").json()
    assert (job["lora"]["rank"], job["lora"]["alpha"], job["lora"]["targets"]) == (4, 8.0, ["q_proj"])
    assert job["trainable_parameters"] == 2 * 4 * (32 + 32)
    before = api.rows()
    error = adapt(api, text="More.", model="facts", lora={"rank": 8}).json()["error"]
    assert (error["code"], error["param"]) == ("shape_mismatch", "lora.rank")
    named = adapt(api, text="More.", model=BASE, adapter="facts", wait=0, lora={"rank": 8}).json()["error"]
    assert named["message"].startswith("lora.rank: facts@2 has 4")
    assert api.rows() == before


def test_a_retried_adapt_runs_once_and_another_body_under_its_key_is_refused(api: Any, worker: Any) -> None:
    worker.finish_job = publish
    key = {"Idempotency-Key": "once"}
    answers = [adapt(api, text="A fact.", headers=key).json() for _ in range(2)]
    assert answers[0] == answers[1]
    assert api.rows()["jobs"] == 1
    other = adapt(api, text="Another fact.", headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
    assert api.rows()["jobs"] == 1


@pytest.mark.parametrize("nll", [float("inf"), float("nan"), 1000.0])
def test_a_perplexity_that_is_no_number_is_refused(api: Any, worker: Any, nll: float) -> None:
    worker.nll_per_token = nll
    answer = api.send("POST", "/v1/evaluate", json={"model": BASE, "text": "abcd"})
    assert answer.status_code == 400, answer.text
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == ("not_finite", "model")


def test_evaluate_measures_a_text_a_talk_and_a_file(api: Any, worker: Any) -> None:
    file = api.upload('{"text": "abc"}\n\n{"prompt": "a", "completion": "b"}\n')
    for body, tokens in (({"text": "abcd"}, 3), ({"messages": TALK}, 3), ({"file": file}, 4)):
        answer = api.send("POST", "/v1/evaluate", json={"model": BASE} | body)
        assert answer.status_code == 200, answer.text
        assert answer.json() == {
            "object": "evaluation",
            "model": BASE,
            "perplexity": pytest.approx(7.389056),
            "loss": 2.0,
            "tokens": tokens,
        }
    both = api.send("POST", "/v1/evaluate", json={"model": BASE, "text": "ab", "file": file})
    assert both.json()["error"]["message"] == "text: give one of text, messages and file"
