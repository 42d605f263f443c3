"""Chat and completions against a worker at the bus edge: OpenAI's forms, streams, limits and failures."""

import json
from typing import Any

import pytest
import redis

from app.contracts.inference import ErrorEvent
from app.text.tokenizer import tokenizer_for
from tests.tiny_base import BASE, tiny_base

HI = [{"role": "user", "content": "Hi"}]


def chat(api: Any, **body: Any) -> Any:
    return api.send("POST", "/v1/chat/completions", json={"model": BASE, "messages": HI} | body)


def complete(api: Any, **body: Any) -> Any:
    return api.send("POST", "/v1/completions", json={"model": BASE} | body)


def chunks(answer: Any) -> list[Any]:
    """The JSON of every event; the last is what follows `data:` when it is no JSON."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


def test_a_chat_answer_has_choices_and_usage(api: Any, worker: Any) -> None:
    worker.cached_tokens = 3
    answer = chat(api, n=2, seed=5, temperature=0, max_tokens=5, stop="x", top_k=3).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["Hello", "Hello"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
    assert answer["object"] == "chat.completion"
    assert answer["model"] == BASE
    sent = worker.requests[0]
    prompt = tokenizer_for(tiny_base()).decode(sent.prompt_token_ids, skip_special_tokens=False)
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert answer["usage"] == {
        "prompt_tokens": len(sent.prompt_token_ids),
        "completion_tokens": 10,
        "total_tokens": len(sent.prompt_token_ids) + 10,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert sent.tenant_id.startswith("tnt-")
    assert (sent.sampling.seed, sent.sampling.temperature, sent.sampling.stop, sent.sampling.top_k) == (5, 0, ["x"], 3)
    assert sent.adapter is None


def test_what_a_client_leaves_out_takes_openais_defaults(api: Any, worker: Any) -> None:
    chat(api)
    complete(api, prompt="Hi")
    chat_sampling, completion_sampling = (request.sampling for request in worker.requests)
    length = len(worker.requests[0].prompt_token_ids)
    assert chat_sampling.max_tokens == 512 - length
    assert completion_sampling.max_tokens == 16
    assert (chat_sampling.temperature, chat_sampling.top_p, chat_sampling.top_k, chat_sampling.n) == (1, 1, 0, 1)
    assert chat_sampling.seed != completion_sampling.seed


def test_chat_log_probabilities(api: Any, worker: Any) -> None:
    worker.reply = "aé"
    content = chat(api, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == [-0.69] * 3
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * 3
    assert [entry["bytes"] for entry in content] == [[97], None, None]
    assert chat(api).json()["choices"][0]["logprobs"] is None


def test_a_chat_stream_is_openais(api: Any, worker: Any) -> None:
    worker.reply = "Hey"
    events = chunks(chat(api, stream=True, stream_options={"include_usage": True}))
    assert events[-1] == "[DONE]"
    *deltas, usage = events[:-1]
    assert deltas[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(delta["choices"][0]["delta"].get("content", "") for delta in deltas) == "Hey"
    assert [delta["choices"][0]["finish_reason"] for delta in deltas] == [None] * 4 + ["stop"]
    assert {delta["object"] for delta in deltas} == {"chat.completion.chunk"}
    assert all(delta["usage"] is None for delta in deltas)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert "usage" not in chunks(chat(api, stream=True))[0]


@pytest.mark.parametrize("prompt", ["ab", ["ab"], "tokens", "lists"])
def test_a_prompt_may_be_text_or_tokens_alone_or_in_a_list(api: Any, worker: Any, prompt: Any) -> None:
    ids = tokenizer_for(tiny_base()).encode("ab")
    answer = complete(api, prompt={"tokens": ids, "lists": [ids]}.get(str(prompt), prompt), echo=True).json()
    assert answer["choices"][0]["text"] == "abHello there"
    assert worker.requests[0].prompt_token_ids == ids
    assert answer["object"] == "text_completion"


def test_several_prompts_and_choices_are_numbered_in_order(api: Any, worker: Any) -> None:
    worker.cached_tokens = 1
    answer = complete(api, prompt=["one ", "two "], n=2, best_of=2, echo=True, max_tokens=5).json()
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in answer["choices"]] == ["one Hello", "one Hello", "two Hello", "two Hello"]
    details = {"cached_tokens": 2}
    assert answer["usage"] == {
        "prompt_tokens": 8, "completion_tokens": 20, "total_tokens": 28, "prompt_tokens_details": details,
    }  # fmt: skip
    events = chunks(complete(api, prompt=["one ", "two "], n=2, echo=True, max_tokens=5, stream=True))
    texts = ["", "", "", ""]
    for event in events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["one Hello", "one Hello", "two Hello", "two Hello"]


def test_scoring_a_prompt_as_evaluation_harnesses_do(api: Any, worker: Any) -> None:
    body = {"prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 0}
    choice = complete(api, **body).json()["choices"][0]
    assert choice["text"] == "abc"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] == {
        "tokens": ["a", "b", "c"],
        "token_logprobs": [None, -0.69, -0.69],
        "top_logprobs": [None, {"b": -0.69}, {"c": -0.69}],
        "text_offset": [0, 1, 2],
    }
    first, *_ = chunks(complete(api, **body, stream=True))
    assert first["choices"][0]["text"] == "abc"
    assert first["choices"][0]["logprobs"]["text_offset"] == [0, 1, 2]


def test_offsets_go_on_through_a_stream_with_echo(api: Any, worker: Any) -> None:
    worker.reply = "xyz"
    events = chunks(complete(api, prompt="ab", echo=True, logprobs=0, stream=True))
    offsets = [o for e in events[:-1] for c in e["choices"] if c["logprobs"] for o in c["logprobs"]["text_offset"]]
    assert offsets == [0, 1, 2, 3, 4]


def test_content_parts_and_harmless_fields_are_accepted(api: Any, worker: Any) -> None:
    parts = [
        {"role": "developer", "content": "Be brief"},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    answer = chat(
        api,
        messages=parts,
        user="me",
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        logit_bias={},
        parallel_tool_calls=True,
        tools=[],
        response_format={"type": "text"},
        modalities=["text"],
        reasoning_effort=None,
    )
    assert answer.status_code == 200, answer.text
    prompt = tokenizer_for(tiny_base()).decode(worker.requests[0].prompt_token_ids, skip_special_tokens=False)
    assert prompt.startswith("<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi")


REFUSED = {
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "response_format": {"response_format": {"type": "json_object"}},
    "logit_bias": {"logit_bias": {"5": 1}},
    "modalities": {"modalities": ["text", "audio"]},
    "messages[0].content": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    "messages[0].role": {"messages": [{"role": "tool", "content": "x"}]},
}


@pytest.mark.parametrize("param", REFUSED)
def test_what_is_not_supported_is_refused_by_name(api: Any, param: str) -> None:
    error = chat(api, **REFUSED[param]).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", param)
    assert error["message"].startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ("completions", {"prompt": "\ud800"}, "prompt[0]"),
        ("completions", {"prompt": "a", "stop": ["\ud800"]}, "stop[0]"),
        ("evaluate", {"text": "a\ud800"}, "text"),
        ("adapt", {"messages": [{"role": "assistant", "content": "\ud800"}]}, "messages"),
    ],
)
def test_what_is_not_unicode_is_refused_everywhere(api: Any, path: str, body: Any, param: str) -> None:
    content = json.dumps({"model": BASE} | body)
    answer = api.send("POST", f"/v1/{path}", content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_a_prompt_of_many_token_ids_is_one_prompt(api: Any, worker: Any) -> None:
    assert complete(api, prompt=[97] * 300).status_code == 200
    assert worker.requests[0].prompt_token_ids == [97] * 300


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {"messages": HI, "top_logprobs": 2}, "top_logprobs"),
        ("chat/completions", {"messages": HI, "max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ("completions", {"prompt": "x", "n": 2, "best_of": 3}, "best_of"),
        ("completions", {"prompt": ["x"] * 20, "n": 10}, "prompt"),
    ],
)
def test_fields_that_contradict_each_other_are_named(api: Any, path: str, body: Any, param: str) -> None:
    answer = api.send("POST", f"/v1/{path}", json={"model": BASE} | body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_completion_fields_that_cannot_be_honoured_are_refused(api: Any) -> None:
    assert complete(api, prompt="x", suffix="y").json()["error"]["param"] == "suffix"
    assert complete(api, prompt="x", best_of=3).json()["error"]["code"] == "unsupported_parameter"
    for prompt in ([], [1, "a"], [True], {"a": 1}, [[]] * 129):
        error = complete(api, prompt=prompt).json()["error"]
        assert error["param"] == "prompt"
        assert "expected a string, token ids" in error["message"]
    error = complete(api, prompt=[1, 999]).json()["error"]
    assert error["message"] == "prompt[1]: expected a token id of 0 to 257, got 999"


def test_no_worker_a_full_queue_and_a_silent_worker_are_503(api: Any, worker: Any) -> None:
    api.settings.request_timeout = 0.3
    worker.silent = True
    silent = chat(api)
    assert (silent.status_code, silent.json()["error"]["code"]) == (503, "worker_silent")
    worker.stop()
    api.settings.max_queued_requests = 0
    full = chat(api)
    assert (full.status_code, full.json()["error"]["code"], full.headers["retry-after"]) == (503, "queue_full", "5")
    redis.Redis.from_url(api.settings.redis_url).flushall()
    gone = chat(api, stream=True)
    assert (gone.status_code, gone.json()["error"]["code"], gone.headers["retry-after"]) == (503, "no_worker", "5")


def test_a_failure_before_the_first_token_is_a_status_and_midway_an_event(api: Any, worker: Any) -> None:
    worker.error = ErrorEvent(status=400, code="context_length_exceeded", message="too long")
    answer = chat(api)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    worker.error = ErrorEvent(status=500, code="internal_error", message="the worker broke")
    worker.error_after = 2
    events = chunks(chat(api, stream=True))
    assert [e["choices"][0]["delta"].get("content") for e in events[1:3]] == ["H", "e"]
    assert events[3]["error"] == {
        "message": "the worker broke",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert len(events) == 4


def test_redis_being_away_is_503(api: Any) -> None:
    api.http.app.state.resources.async_redis.connection_pool.connection_kwargs["port"] = 1
    answer = chat(api)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "redis_unavailable")
    assert answer.headers["retry-after"] == "5"
