"""The engine: what a batch gives is what each request alone would get, and every request ends properly."""

from collections.abc import Callable

import pytest
import torch

from app.contracts.inference import (
    DoneEvent,
    ErrorEvent,
    FinishEvent,
    InferenceEvent,
    PromptEvent,
    ScoredSequence,
    ScoreRequest,
    TextEvent,
)
from app.text.tokenizer import tokenizer_for
from tests.unit.inference.conftest import Events, Harness, generate, ref
from workers.loading import LoadedBase
from workers.models.batch import pack

Harnesses = Callable[..., Harness]
PROMPT = [10, 40, 41, 12, 70]
LONG_PROMPT = [(7 * i * i + 3 * i) % 96 for i in range(75)]


def text_of(events: Events, index: int = 0) -> str:
    """Return all text of one choice."""
    return "".join(event.text for event in events if isinstance(event, TextEvent) and event.index == index)


def finishes(events: Events) -> dict[int, str]:
    """Return each choice's reason to end."""
    return {event.index: event.reason for event in events if isinstance(event, FinishEvent)}


def logits_of(base: LoadedBase, ids: list[int]) -> torch.Tensor:
    """Return the base's logits of one sequence, without any cache [T, V]."""
    with torch.no_grad():
        return base.model.logits(base.model.hidden(pack([ids], [-1], base.model.device)))


def assert_same(ours: InferenceEvent, theirs: InferenceEvent) -> None:
    """Compare two events, log-probabilities within 1e-5."""

    def split(value: object) -> tuple[object, list[float]]:
        numbers: list[float] = []

        def walk(node: object) -> object:
            if isinstance(node, float):
                numbers.append(node)
                return "number"
            if isinstance(node, dict):
                return {key: walk(item) for key, item in node.items()}
            if isinstance(node, list | tuple):
                return [walk(item) for item in node]
            return node

        return walk(value), numbers

    shape, numbers = split(ours.model_dump())
    other_shape, other_numbers = split(theirs.model_dump())
    assert shape == other_shape
    assert numbers == pytest.approx(other_numbers, abs=1e-5)


@pytest.mark.parametrize("stagger", [0, 1, 3])
def test_a_mixed_batch_equals_each_request_alone(harness: Harnesses, stagger: int) -> None:
    requests = [
        generate("base", PROMPT),
        generate("greedy", PROMPT, "v1", max_tokens=12),
        generate("sampled", LONG_PROMPT, "v2", temperature=1, seed=5, max_tokens=15),
        generate("choices", PROMPT[:1], "v1", "tnt-b", n=3, temperature=0.8, top_p=0.9, seed=6, logprobs=2),
        generate("echo", LONG_PROMPT[:40], "v3", logprobs=3, prompt_logprobs=True, temperature=1, top_k=5, seed=7),
        generate("penalised", PROMPT, None, max_tokens=20, presence_penalty=0.7, frequency_penalty=0.9),
    ]
    together = harness(max_sequences=16).run(*requests, stagger=stagger)
    for request in requests:
        alone = harness().run(request)[request.id]
        for index in range(request.sampling.n):
            assert text_of(together[request.id], index) == text_of(alone, index)
        mine = sorted(together[request.id], key=lambda event: getattr(event, "index", -1))
        for ours, theirs in zip(mine, sorted(alone, key=lambda event: getattr(event, "index", -1)), strict=True):
            assert_same(ours, theirs)
    texts = [text_of(together[name]) for name in ("base", "greedy")]
    assert texts[0] != texts[1][: len(texts[0])]


def test_greedy_decoding_equals_full_forwards(harness: Harnesses, base: LoadedBase) -> None:
    ids = list(LONG_PROMPT)
    for _ in range(10):
        ids.append(int(logits_of(base, ids)[-1].argmax()))
    events = harness().run(generate("r", LONG_PROMPT, max_tokens=10))["r"]
    assert text_of(events) == tokenizer_for(base.info).decode(ids[len(LONG_PROMPT) :])
    assert finishes(events) == {0: "length"}
    assert events[-1] == DoneEvent(prompt_tokens=75, completion_tokens=10)


def test_echo_scores_the_prompt_without_generating(harness: Harnesses, base: LoadedBase) -> None:
    request = generate("r", LONG_PROMPT, max_tokens=0, logprobs=2, prompt_logprobs=True)
    _, prompt, finish, done = harness().run(request)["r"]
    assert isinstance(prompt, PromptEvent)
    log = torch.log_softmax(logits_of(base, LONG_PROMPT), -1)
    assert prompt.logprobs[0].logprob is None
    for t, entry in enumerate(prompt.logprobs[1:], start=1):
        assert entry.token_id == LONG_PROMPT[t]
        assert entry.logprob == pytest.approx(log[t - 1, LONG_PROMPT[t]].item(), abs=1e-5)
        assert [i for i, _, _ in entry.top] == log[t - 1].topk(2).indices.tolist()
    assert finish == FinishEvent(index=0, reason="length")
    assert done == DoneEvent(prompt_tokens=75, completion_tokens=0)


def test_logprobs_are_of_the_untouched_distribution(harness: Harnesses, base: LoadedBase) -> None:
    request = generate("r", PROMPT, max_tokens=6, temperature=3, top_k=9, frequency_penalty=1, seed=3, logprobs=1)
    entries = [e.logprobs[0] for e in harness().run(request)["r"] if isinstance(e, TextEvent)]
    ids = PROMPT + [entry.token_id for entry in entries]
    log = torch.log_softmax(logits_of(base, ids), -1)
    for t, entry in enumerate(entries, start=len(PROMPT)):
        assert entry.logprob == pytest.approx(log[t - 1, ids[t]].item(), abs=1e-5)
        assert entry.top[0][2] == pytest.approx(log[t - 1].max().item(), abs=1e-5)


def test_choices_share_one_prefill_and_differ_by_index_only(
    harness: Harnesses, base: LoadedBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = harness().run(generate("r", LONG_PROMPT, temperature=1, seed=4))["r"]
    forwarded = []
    hidden = base.model.hidden
    monkeypatch.setattr(
        base.model, "hidden", lambda batch, caches: (forwarded.extend(batch.lengths), hidden(batch, caches))[1]
    )
    events = harness().run(generate("r", LONG_PROMPT, temperature=1, seed=4, n=4))["r"]
    assert sum(forwarded) == len(LONG_PROMPT) + 4 * 7
    assert text_of(events, 0) == text_of(alone)
    assert len({text_of(events, index) for index in range(4)}) == 4
    assert events[-1] == DoneEvent(prompt_tokens=75, completion_tokens=32)


def test_stop_strings_cross_tokens_and_are_not_shown(harness: Harnesses) -> None:
    full = text_of(harness().run(generate("r", PROMPT, max_tokens=20, temperature=1, seed=1))["r"])
    stop = full[9:12]
    events = harness().run(generate("r", PROMPT, max_tokens=20, temperature=1, seed=1, stop=["nope!", stop]))["r"]
    assert text_of(events) == full[: full.index(stop)]
    assert finishes(events) == {0: "stop"}


def test_an_end_token_ends_a_choice_and_releases_held_text(base: LoadedBase, harness: Harnesses) -> None:
    tokens = [e.logprobs[0] for e in harness().run(generate("r", PROMPT, logprobs=0))["r"] if isinstance(e, TextEvent)]
    position = next(i for i, entry in enumerate(tokens) if i > 0 and entry.token_id != tokens[0].token_id)
    info = base.info.model_copy(update={"eos_token_ids": [tokens[position].token_id]})
    stop = tokens[position - 1].token + "never"
    events = Harness(LoadedBase(base.model, info, {}), {}).run(generate("r", PROMPT, stop=[stop]))["r"]
    assert text_of(events) == "".join(entry.token for entry in tokens[:position])
    assert finishes(events) == {0: "stop"}
    assert events[-1] == DoneEvent(prompt_tokens=len(PROMPT), completion_tokens=position + 1)


def test_decoding_goes_on_while_a_long_prompt_is_read(harness: Harnesses) -> None:
    engine = harness(prefill_tokens=8).engine
    engine.submit(generate("short", PROMPT[:2], max_tokens=50))
    engine.step()
    engine.submit(generate("long", LONG_PROMPT))
    for _ in range(len(LONG_PROMPT) // 8):
        out = engine.step()
        assert [type(event) for event in out["short"]] == [TextEvent]
        assert not any(isinstance(event, TextEvent) for event in out["long"])
    assert any(isinstance(event, TextEvent) for event in engine.step()["long"])


def test_an_abort_frees_the_place_and_the_pin_at_the_next_step(harness: Harnesses) -> None:
    engine = harness(max_sequences=2, slots=1).engine
    engine.submit(generate("gone", PROMPT, "v1", n=2, max_tokens=400))
    engine.submit(generate("next", PROMPT, "v2"))
    assert set(engine.step()) == {"gone"}
    engine.abort(["gone", "unknown"])
    assert set(engine.step()) == {"next"}
    assert engine.request_ids == ["next"]


def test_a_full_cache_of_pinned_versions_lets_others_pass(harness: Harnesses) -> None:
    engine = harness(slots=1).engine
    engine.submit(generate("first", PROMPT, "v1", max_tokens=3))
    engine.submit(generate("waits", PROMPT, "v2", "tnt-b", max_tokens=3))
    engine.submit(generate("base", PROMPT, max_tokens=3))
    assert set(engine.step()) == {"first", "base"}
    assert set(engine.step()) == {"first", "base"}
    assert set(engine.step()) == {"first", "base"}
    assert set(engine.step()) == {"waits"}


def test_a_version_that_cannot_load_fails_its_request_only(harness: Harnesses) -> None:
    events = harness().run(generate("bad", PROMPT, "v9"), generate("good", PROMPT, "v1"))
    assert events["bad"] == [ErrorEvent(status=404, code="adapter_not_found", message="version v9 is gone")]
    assert isinstance(events["good"][-1], DoneEvent)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"prompt": PROMPT, "n": 9}, "n_too_large"),
        ({"prompt": PROMPT, "max_tokens": 508}, "context_length_exceeded"),
        ({"prompt": [98]}, "invalid_token"),
        ({"prompt": [-1]}, "invalid_token"),
    ],
)
def test_impossible_requests_are_refused(harness: Harnesses, changes: dict[str, object], code: str) -> None:
    (error,) = harness().run(generate("r", **changes))["r"]  # type: ignore[arg-type]
    assert isinstance(error, ErrorEvent)
    assert (error.status, error.code) == (400, code)


def test_scores_are_sums_over_the_mask_and_run_in_slices(harness: Harnesses, base: LoadedBase) -> None:
    sequences = [
        ScoredSequence(token_ids=LONG_PROMPT[i : i + 30], loss_mask=[0, *[t % 3 != 0 for t in range(1, 30)]])
        for i in range(0, 45, 5)
    ]
    request = ScoreRequest(id="score", base_model="tiny", adapter=None, sequences=sequences)
    adapted = request.model_copy(update={"id": "adapted", "adapter": ref("v1")})
    events = harness(read_tokens=64).run(request, adapted, generate("r", PROMPT))
    nll, tokens = 0.0, 0
    for sequence in sequences:
        log = torch.log_softmax(logits_of(base, sequence.token_ids), -1)
        for t in range(1, 30):
            if sequence.loss_mask[t]:
                nll -= log[t - 1, sequence.token_ids[t]].item()
                tokens += 1
    score = events["score"][-1]
    assert score.type == "score"
    assert (score.nll, score.tokens) == (pytest.approx(nll, rel=1e-5), tokens)
    assert events["adapted"][-1].nll != pytest.approx(nll, rel=1e-3)
    assert len(events["score"]) > 2


def test_fail_all_ends_everyone_and_frees_everything(harness: Harnesses) -> None:
    made = harness(max_sequences=1, slots=1)
    made.engine.submit(generate("running", PROMPT, "v1", max_tokens=400))
    made.engine.submit(generate("waiting", PROMPT, "v1"))
    made.engine.step()
    error = ErrorEvent(status=500, code="x", message="y")
    assert made.engine.fail_all(error) == {"running": [error], "waiting": [error]}
    assert not made.engine.busy
    assert isinstance(made.run(generate("after", PROMPT, "v2"))["after"][-1], DoneEvent)
