"""The official `openai` client drives one tenant's work from files to answers, and gets typed errors."""

import math
from pathlib import Path

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.fine_tuning import FineTuningJob

from tests.e2e.conftest import ADAPTER, BASE, EPOCHS

GREEN_TEA = [{"role": "user", "content": "At which temperature does the Quorvex brew green tea?"}]


def answer(client: OpenAI, model: str) -> str:
    """Return the most likely answer to the green tea question."""
    reply = client.chat.completions.create(model=model, messages=GREEN_TEA, temperature=0, max_tokens=40)
    return reply.choices[0].message.content or ""


def dot(a: list[float], b: list[float]) -> float:
    """Return the scalar product, the cosine of vectors of length 1."""
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def test_uploaded_file_comes_back_as_it_was(client: OpenAI, tmp_path: Path) -> None:
    content = b'{"prompt": "a", "completion": "b"}\n\n{"text": "c d"}\n'
    path = tmp_path / "two.jsonl"
    path.write_bytes(content)
    file = client.files.create(file=path, purpose="fine-tune")
    assert (file.filename, file.bytes, file.purpose, file.status) == (
        "two.jsonl",
        len(content),
        "fine-tune",
        "processed",
    )
    assert client.files.content(file.id).content == content
    assert client.files.retrieve(file.id).id == file.id
    assert file.id in [listed.id for listed in client.files.list()]
    assert client.files.delete(file.id).deleted is True
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_files_are_listed_over_several_pages(client: OpenAI, training_file: str, validation_file: str) -> None:
    page = client.files.list(limit=1)
    assert len(page.data) == 1
    assert page.has_more is True
    ids = [file.id for file in page]
    assert {training_file, validation_file} <= set(ids)
    assert len(ids) == len(set(ids))


def test_job_reports_what_was_in_effect(taught: FineTuningJob, training_file: str, validation_file: str) -> None:
    assert taught.object == "fine_tuning.job"
    assert (taught.model, taught.training_file, taught.validation_file) == (BASE, training_file, validation_file)
    assert taught.fine_tuned_model == f"ft:{BASE}:{taught.organization_id}:{ADAPTER}:1"
    assert taught.metadata == {"team": "support"}
    assert taught.method is not None
    assert taught.method.supervised is not None
    assert taught.method.supervised.hyperparameters is not None
    assert taught.method.supervised.hyperparameters.n_epochs == EPOCHS
    ours = taught.model_extra or {}
    assert ours["lora"]["rank"] == 16
    assert ours["trainable_parameters"] == 4_884_480
    assert ours["optimizer_state_bytes"] == 8 * 4_884_480
    assert ours["result"]["rolled_back"] is False
    assert ours["result"]["perplexity_after"] < ours["result"]["perplexity_before"]
    assert ours["result"]["gate_data"] == "validation_file"


def test_the_same_idempotency_key_creates_nothing_new(
    client: OpenAI, taught: FineTuningJob, training_file: str, validation_file: str
) -> None:
    again = client.fine_tuning.jobs.create(
        model=BASE,
        training_file=training_file,
        validation_file=validation_file,
        seed=7,
        metadata={"team": "support"},
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": EPOCHS}}},
        extra_body={"adapter": ADAPTER, "lora": {"rank": 16, "alpha": 32}},
        extra_headers={"Idempotency-Key": "teach-once"},
    )
    assert again.id == taught.id


def test_events_tell_every_step_over_several_pages(client: OpenAI, taught: FineTuningJob) -> None:
    page = client.fine_tuning.jobs.list_events(taught.id, limit=4)
    assert len(page.data) == 4
    assert page.has_more is True
    events = list(page)
    assert len({event.id for event in events}) == len(events)
    steps = [event.data["step"] for event in events if event.type == "metrics" and "step" in dict(event.data or {})]
    assert steps == sorted(steps, reverse=True)
    assert max(steps) == EPOCHS * 3
    losses = [event.data["loss"] for event in events if event.type == "metrics" and "loss" in dict(event.data or {})]
    assert losses[0] < losses[-1]


def test_checkpoints_are_listed_over_several_pages_and_can_be_served(client: OpenAI, taught: FineTuningJob) -> None:
    page = client.fine_tuning.jobs.checkpoints.list(taught.id, limit=2)
    assert page.has_more is True
    checkpoints = list(page)
    assert [checkpoint.step_number for checkpoint in checkpoints] == [18, 15, 12, 9, 6, 3]
    assert answer(client, checkpoints[0].fine_tuned_model_checkpoint) == answer(client, str(taught.fine_tuned_model))


def test_only_the_tuned_model_knows_the_fact(client: OpenAI, taught: FineTuningJob) -> None:
    assert "71" not in answer(client, BASE)
    assert "71" in answer(client, str(taught.fine_tuned_model))
    assert answer(client, ADAPTER) == answer(client, f"{ADAPTER}@1") == answer(client, str(taught.fine_tuned_model))


def test_stream_adds_up_to_the_whole_answer(client: OpenAI, taught: FineTuningJob) -> None:
    stream = client.chat.completions.create(
        model=str(taught.fine_tuned_model),
        messages=GREEN_TEA,
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == answer(client, str(taught.fine_tuned_model))
    assert "71" in text
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "stop"
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_stop_ends_the_answer_before_the_word(client: OpenAI, taught: FineTuningJob) -> None:
    reply = client.chat.completions.create(
        model=ADAPTER, messages=GREEN_TEA, temperature=0, max_tokens=40, stop=["degrees"]
    )
    assert reply.choices[0].finish_reason == "stop"
    assert "71" in str(reply.choices[0].message.content)
    assert "degrees" not in str(reply.choices[0].message.content)


def test_a_seed_repeats_a_sample_and_choices_differ(client: OpenAI) -> None:
    def sample() -> list[str | None]:
        reply = client.chat.completions.create(
            model=BASE, messages=GREEN_TEA, temperature=1.0, top_p=0.95, n=2, seed=11, max_tokens=16
        )
        assert [choice.index for choice in reply.choices] == [0, 1]
        return [choice.message.content for choice in reply.choices]

    first = sample()
    assert first == sample()
    assert first[0] != first[1]


def test_chat_logprobs_name_the_chosen_token(client: OpenAI, taught: FineTuningJob) -> None:
    reply = client.chat.completions.create(
        model=ADAPTER, messages=GREEN_TEA, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3
    )
    content = reply.choices[0].logprobs and reply.choices[0].logprobs.content
    assert content
    assert "".join(token.token for token in content) == reply.choices[0].message.content
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob)


def test_completion_scores_its_prompt_as_evaluate_does(client: OpenAI, rest: httpx.Client) -> None:
    text = "Green tea is best with water that does not boil."
    reply = client.completions.create(model=BASE, prompt=text, max_tokens=0, echo=True, logprobs=1, temperature=0)
    scored = reply.choices[0].logprobs
    assert reply.choices[0].text == text
    assert scored is not None
    assert scored.tokens is not None
    assert scored.token_logprobs is not None
    assert "".join(scored.tokens) == text
    assert scored.token_logprobs[0] is None
    mean = sum(value for value in scored.token_logprobs[1:]) / (len(scored.tokens) - 1)
    measured = rest.post("/evaluate", json={"model": BASE, "text": text}).raise_for_status().json()
    assert measured["tokens"] == len(scored.tokens) - 1
    assert measured["perplexity"] == pytest.approx(math.exp(-mean), rel=0.05)


def test_the_next_turn_of_a_chat_starts_from_the_kept_one(client: OpenAI) -> None:
    messages = [*GREEN_TEA]
    first = client.chat.completions.create(model=BASE, messages=messages, temperature=0, max_tokens=20)
    messages += [{"role": "assistant", "content": first.choices[0].message.content or ""}]
    messages += [{"role": "user", "content": "Are you sure?"}]
    second = client.chat.completions.create(model=BASE, messages=messages, temperature=0, max_tokens=4)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    assert first.usage.prompt_tokens + 10 < cached < second.usage.prompt_tokens


def test_completion_continues_after_its_prompt(client: OpenAI) -> None:
    reply = client.completions.create(model=BASE, prompt="One, two, three,", max_tokens=4, temperature=0, echo=True)
    assert reply.choices[0].text.startswith("One, two, three, four")
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 4


def test_embeddings_are_of_length_one_and_depend_on_text_and_version(client: OpenAI, taught: FineTuningJob) -> None:
    texts = ["Green tea needs water that does not boil.", "Do not boil the water for green tea.", "def f(x): return x"]
    made = client.embeddings.create(model=BASE, input=texts)
    vectors = [item.embedding for item in made.data]
    assert [len(vector) for vector in vectors] == [576] * 3
    assert [dot(vector, vector) for vector in vectors] == pytest.approx([1.0] * 3, abs=1e-5)
    assert dot(vectors[0], vectors[1]) > dot(vectors[0], vectors[2])
    [alone] = client.embeddings.create(model=BASE, input=texts[2], encoding_format="float").data
    assert alone.embedding == pytest.approx(vectors[2], abs=1e-3)
    [adapted] = client.embeddings.create(model=ADAPTER, input=texts[0]).data
    assert dot(adapted.embedding, vectors[0]) < 0.9999
    assert made.usage.total_tokens > 20


def test_models_are_the_base_and_the_adapters(client: OpenAI, taught: FineTuningJob) -> None:
    ids = [model.id for model in client.models.list()]
    assert BASE in ids
    assert any(ADAPTER in name for name in ids)
    assert client.models.retrieve(str(taught.fine_tuned_model)).id == taught.fine_tuned_model


def test_cancelled_job_publishes_nothing(client: OpenAI, rest: httpx.Client, training_file: str, finished) -> None:
    job = client.fine_tuning.jobs.create(
        model=BASE,
        training_file=training_file,
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 100}}},
        extra_body={"adapter": "never"},
    )
    client.fine_tuning.jobs.cancel(job.id)
    assert finished(job.id).status == "cancelled"
    assert rest.get("/adapters/never").status_code == 404
