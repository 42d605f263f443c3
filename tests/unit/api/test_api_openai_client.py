"""The official `openai` client against the application over real HTTP."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import uvicorn
from openai import OpenAI

from app.contracts.inference import ErrorEvent
from app.main import create_app
from tests.job_outcomes import fail, publish
from tests.tiny_base import BASE

HI = [{"role": "user", "content": "Hi"}]
LINE = b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n'


@pytest.fixture
def url(api: Any) -> Iterator[str]:
    """The application behind uvicorn, sharing database and Valkey with `api`."""
    server = uvicorn.Server(uvicorn.Config(create_app(api.settings), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline, "uvicorn did not start"
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def client(api: Any, url: str) -> Iterator[OpenAI]:
    """The client with the first tenant's key."""
    with OpenAI(api_key=api.key, base_url=f"{url}/v1", max_retries=0) as client:
        yield client


def upload(client: OpenAI) -> str:
    return client.files.create(file=("chats.jsonl", LINE * 10), purpose="fine-tune").id


def test_files(client: OpenAI) -> None:
    file = client.files.create(file=("chats.jsonl", LINE * 3), purpose="fine-tune")
    assert (file.status, file.filename, file.bytes) == ("processed", "chats.jsonl", len(LINE * 3))
    assert client.files.wait_for_processing(file.id).id == file.id
    assert client.files.content(file.id).content == LINE * 3
    assert client.files.retrieve(file.id) == file
    more = [upload(client) for _ in range(4)]
    assert [f.id for f in client.files.list(limit=2)] == [*reversed(more), file.id]
    assert [f.id for f in client.files.list(limit=2, order="asc", purpose="fine-tune")] == [file.id, *more]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_a_job_from_creation_to_a_served_model(client: OpenAI, worker: Any) -> None:
    worker.finish_job = publish
    job = client.fine_tuning.jobs.create(
        model=BASE,
        training_file=upload(client),
        validation_file=upload(client),
        seed=7,
        suffix="Support Bot",
        metadata={"team": "a"},
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": "auto"}}},
        extra_body={
            "retention_file": (kept := upload(client)),
            "rollback": {"retention_tolerance": 1.1},
            "lora": {"rank": 8},
            "trust_region": {"max_delta": 0.01},
            "training": {"weight_decay": 0.1, "schedule": "constant"},
        },
    )
    extra = job.model_extra or {}
    assert (job.status, job.model, job.seed, job.metadata) == ("queued", BASE, 7, {"team": "a"})
    assert (job.hyperparameters.n_epochs, job.hyperparameters.batch_size) == (2, 4)
    assert (extra["lora"]["rank"], extra["lora"]["alpha"], extra["trust_region"]["max_delta"]) == (8, 32.0, 0.01)
    assert extra["retention_file"] == kept
    assert extra["rollback"] == {"enabled": True, "tolerance": 1.25, "retention_tolerance": 1.1}
    assert extra["training"] == {
        "epochs": 2,
        "batch_size": 4,
        "learning_rate": 2e-3,
        "seq_len": 512,
        "max_grad_norm": 1.0,
        "weight_decay": 0.1,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "gradient_accumulation": 1,
        "warmup_steps": 0,
        "schedule": "constant",
        "activation_checkpointing": False,
        "shard": None,
    }
    assert extra["adapter"].startswith("Support-Bot-")
    deadline = time.monotonic() + 20
    while job.status != "succeeded":
        assert time.monotonic() < deadline
        job = client.fine_tuning.jobs.retrieve(job.id)
    assert job.trained_tokens == 42
    assert job.fine_tuned_model == f"ft:{BASE}:{job.organization_id}:{extra['adapter']}:1"
    messages = [event.message for event in client.fine_tuning.jobs.list_events(job.id, limit=1)]
    assert messages[-1] == "Job created and queued"
    assert len(messages) >= 3
    [checkpoint] = client.fine_tuning.jobs.checkpoints.list(job.id)
    assert (checkpoint.step_number, checkpoint.metrics.train_loss) == (3, 1.5)
    for model in (job.fine_tuned_model, checkpoint.fine_tuned_model_checkpoint):
        answer = client.chat.completions.create(model=model, messages=HI)
        assert (answer.choices[0].message.content, answer.model) == ("Hello there", model)
        assert client.models.retrieve(model).id == model
    assert worker.requests[0].adapter.version_id != worker.requests[1].adapter.version_id
    assert [m.id for m in client.models.list()] == [BASE, extra["adapter"]]


def test_jobs_are_listed_in_pages_and_by_metadata(client: OpenAI) -> None:
    file = upload(client)
    teams = ["a", "b", "a", None, "a"]
    ids = []
    for team in teams:
        metadata = openai.omit if team is None else {"team": team}
        ids.append(client.fine_tuning.jobs.create(model=BASE, training_file=file, metadata=metadata).id)
    assert [job.id for job in client.fine_tuning.jobs.list(limit=2)] == ids[::-1]
    found = client.fine_tuning.jobs.list(limit=2, metadata={"team": "a"})
    assert [job.id for job in found] == [ids[4], ids[2], ids[0]]
    assert [job.id for job in client.fine_tuning.jobs.list(extra_query={"metadata": "null"})] == [ids[3]]
    assert list(client.fine_tuning.jobs.list(metadata={"team": "c"})) == []


def test_a_cancelled_job_and_a_failed_job(client: OpenAI, worker: Any) -> None:
    file = upload(client)
    job = client.fine_tuning.jobs.create(model=BASE, training_file=file)
    assert client.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    assert client.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    worker.finish_job = fail
    job = client.fine_tuning.jobs.create(model=BASE, training_file=file)
    worker.wait_until(lambda: client.fine_tuning.jobs.retrieve(job.id).status == "failed")
    error = client.fine_tuning.jobs.retrieve(job.id).error
    assert error is not None
    assert (error.code, error.message) == ("no_gradient", "q_proj got none")
    with pytest.raises(openai.BadRequestError, match="has failed and cannot be cancelled"):
        client.fine_tuning.jobs.cancel(job.id)


def test_a_job_is_paused_and_resumed(client: OpenAI, worker: Any) -> None:
    file = upload(client)
    job = client.fine_tuning.jobs.create(model=BASE, training_file=file)
    for _ in range(2):
        assert client.fine_tuning.jobs.pause(job.id).status == "paused"
    worker.finish_job = publish
    other = client.fine_tuning.jobs.create(model=BASE, training_file=file)
    worker.wait_until(lambda: client.fine_tuning.jobs.retrieve(other.id).status == "succeeded")
    assert client.fine_tuning.jobs.retrieve(job.id).status == "paused"
    assert client.fine_tuning.jobs.resume(job.id).status in {"queued", "running", "succeeded"}
    worker.wait_until(lambda: client.fine_tuning.jobs.retrieve(job.id).status == "succeeded")
    for call, what in ((client.fine_tuning.jobs.pause, "paused"), (client.fine_tuning.jobs.resume, "resumed")):
        with pytest.raises(openai.BadRequestError, match=f"has succeeded and cannot be {what}") as ended:
            call(job.id)
        assert ended.value.code == "job_ended"
        with pytest.raises(openai.NotFoundError):
            call("ftjob-unknown")


def test_a_retried_creation_makes_one_job(client: OpenAI) -> None:
    body = {"model": BASE, "training_file": upload(client), "extra_headers": {"Idempotency-Key": "a-key"}}
    first, second = (client.fine_tuning.jobs.create(**body) for _ in range(2))
    assert first == second
    client.files.delete(body["training_file"])
    assert client.fine_tuning.jobs.create(**body) == first
    with pytest.raises(openai.ConflictError) as caught:
        client.fine_tuning.jobs.create(**body | {"seed": 3})
    assert caught.value.code == "idempotency_key_reused"
    assert len(list(client.fine_tuning.jobs.list())) == 1


def test_chat_and_completions_with_and_without_streaming(client: OpenAI, worker: Any) -> None:
    whole = client.chat.completions.create(model=BASE, messages=HI, n=2, logprobs=True, top_logprobs=1)
    assert [choice.message.content for choice in whole.choices] == ["Hello there"] * 2
    assert whole.choices[0].logprobs.content[0].top_logprobs[0].token == "H"
    stream = client.chat.completions.create(
        model=BASE, messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello there"
    assert chunks[-1].usage.completion_tokens == 11
    completion = client.completions.create(model=BASE, prompt=["a", "b"], max_tokens=5, echo=True, logprobs=1)
    assert [choice.text for choice in completion.choices] == ["aHello", "bHello"]
    pieces = client.completions.create(model=BASE, prompt="a", stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == "Hello there"


def test_embeddings_in_base64_and_as_numbers(client: OpenAI, worker: Any) -> None:
    usual = client.embeddings.create(model=BASE, input=["a", "ab"])
    numbers = client.embeddings.create(model=BASE, input=["a", "ab"], encoding_format="float", user="me")
    assert [item.embedding for item in usual.data] == [item.embedding for item in numbers.data]
    assert [item.embedding[0] for item in usual.data] == [1, 2]
    assert (usual.usage.prompt_tokens, usual.usage.total_tokens, usual.model) == (3, 3, BASE)
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model=BASE, input="a", dimensions=2)
    assert refused.value.param == "dimensions"


def test_errors_are_typed(client: OpenAI, api: Any, url: str) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nobody", messages=HI)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=BASE, messages=HI, temperature=9)
    assert (bad.value.code, bad.value.param) == ("invalid_value", "temperature")
    with pytest.raises(openai.AuthenticationError) as stranger:
        OpenAI(api_key="tml-nobody", base_url=f"{url}/v1").models.list()
    assert stranger.value.code == "invalid_api_key"
    api.settings.max_queued_jobs = 1
    file = upload(client)
    client.fine_tuning.jobs.create(model=BASE, training_file=file)
    with pytest.raises(openai.RateLimitError) as full:
        client.fine_tuning.jobs.create(model=BASE, training_file=file)
    assert full.value.code == "too_many_queued_jobs"
    assert full.value.response.headers["retry-after"] == "30"
    with pytest.raises(openai.InternalServerError) as nobody:
        client.chat.completions.create(model=BASE, messages=HI)
    assert (nobody.value.status_code, nobody.value.code) == (503, "no_worker")


def test_an_error_midway_reaches_the_client(client: OpenAI, worker: Any) -> None:
    worker.error, worker.error_after = ErrorEvent(status=500, code="broken", message="the worker broke"), 3
    with pytest.raises(openai.APIError, match="the worker broke"):
        list(client.chat.completions.create(model=BASE, messages=HI, stream=True))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(api: Any, url: str, worker: Any, stream: bool) -> None:
    worker.endless, api.settings.request_timeout = True, 600
    body = json.dumps({"model": BASE, "messages": HI, "stream": stream})
    leaving = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    headers = {"Authorization": f"Bearer {api.key}", "Content-Type": "application/json"}
    leaving.request("POST", "/v1/chat/completions", body, headers)
    worker.wait_until(lambda: worker.requests, seconds=60)
    if stream:
        assert leaving.getresponse().readline().startswith(b"data: ")
    leaving.close()
    worker.wait_until(lambda: worker.aborted == {worker.requests[0].id}, seconds=60)
