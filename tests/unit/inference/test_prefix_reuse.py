"""A conversation's next turn starts from the kept state, and nothing but the time it takes tells so."""

import pytest

from app.contracts.inference import DoneEvent, GenerateRequest, TextEvent
from tests.unit.inference.conftest import Events, generate
from tests.unit.inference.families import CONFIGS, engine_of, load_family, tokens_of
from workers.loading import LoadedBase

PLENTY = 10**8
FIRST = [(7 * i * i + 3 * i) % 90 for i in range(37)]
NEWS = [(11 * i + 5) % 90 for i in range(21)]
SAMPLINGS: dict[str, dict[str, object]] = {
    "greedy": {"logprobs": 2},
    "sampled": {"temperature": 1, "top_p": 0.9, "seed": 3, "logprobs": 2},
}


@pytest.fixture(scope="module", params=list(CONFIGS))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedBase:
    """A tiny model of each kind."""
    return load_family(tmp_path_factory.mktemp(request.param), request.param)


def cached(events: Events) -> int:
    """How many prompt tokens were not computed."""
    (done,) = [event for event in events if isinstance(event, DoneEvent)]
    return done.cached_tokens


def assert_same_answers(ours: Events, theirs: Events) -> None:
    """Text and tokens are equal, log-probabilities within 1e-4."""
    mine, other = ([event for event in events if isinstance(event, TextEvent)] for events in (ours, theirs))
    assert [(e.index, e.text) for e in mine] == [(e.index, e.text) for e in other]
    for one, two in zip(mine, other, strict=True):
        for a, b in zip(one.logprobs, two.logprobs, strict=True):
            assert a.token_id == b.token_id
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
            assert [value for *_, value in a.top] == pytest.approx([value for *_, value in b.top], abs=1e-4)


@pytest.mark.parametrize("sampling", list(SAMPLINGS))
@pytest.mark.parametrize("adapter", [None, "v1"])
def test_turns_of_a_conversation_equal_those_without_reuse(
    family: LoadedBase, adapter: str | None, sampling: str
) -> None:
    made = engine_of(family, PLENTY)
    prompt = list(FIRST)
    for turn in range(3):
        request = generate(f"turn-{turn}", prompt, adapter, **SAMPLINGS[sampling])
        events = made.run(request)[request.id]
        assert_same_answers(events, engine_of(family, 0).run(request)[request.id])
        # All but the first prompt: the answer but for its last token, which was never run.
        assert cached(events) == (0 if turn == 0 else len(prompt) - len(NEWS) - 1)
        prompt += tokens_of(events) + NEWS
    assert made.prefixes.stats().hits == 2
    assert made.prefixes.stats().saved_tokens == 2 * (len(FIRST) + 7) + len(NEWS) + 8


def test_an_answer_that_the_template_writes_differently_reuses_what_came_before_it(family: LoadedBase) -> None:
    made = engine_of(family, PLENTY)
    answer = tokens_of(made.run(generate("first", FIRST, logprobs=0))["first"])
    rendered = [*answer[:3], (answer[3] + 1) % 90, 4, 2]
    request = generate("second", FIRST + rendered + NEWS, logprobs=1)
    events = made.run(request)["second"]
    assert cached(events) == len(FIRST) + (3 if "Llama" in family.info.architecture else 0)
    assert_same_answers(events, engine_of(family, 0).run(request)["second"])


def test_the_same_prompt_again_runs_one_token_at_most(family: LoadedBase, monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine_of(family, PLENTY)
    requests = [generate(name, FIRST, "v1", n=2, temperature=1, seed=4, logprobs=1) for name in ("one", "two")]
    first = made.run(requests[0])["one"]
    lengths: list[int] = []
    hidden = family.model.hidden
    monkeypatch.setattr(family.model, "hidden", lambda b, caches: (lengths.extend(b.lengths), hidden(b, caches))[1])
    again = made.run(requests[1])["two"]
    assert_same_answers(again, first)
    assert set(lengths) == {1}
    assert cached(again) == len(FIRST) - ("Llama" in family.info.architecture)


def test_requests_that_share_a_beginning_run_side_by_side(family: LoadedBase) -> None:
    made = engine_of(family, PLENTY, prefill_tokens=8)
    made.run(generate("first", FIRST, "v2", max_tokens=1))
    requests = [generate(f"r{i}", FIRST + NEWS[i:], "v2", temperature=1, seed=i, logprobs=1) for i in range(4)]
    together = made.run(*requests, stagger=2)
    for request in requests:
        assert cached(together[request.id]) >= len(FIRST)
        assert_same_answers(together[request.id], engine_of(family, 0).run(request)[request.id])


def test_nothing_crosses_tenants_or_versions(family: LoadedBase) -> None:
    made = engine_of(family, PLENTY)
    asked = [(None, "tnt-a"), (None, "tnt-b"), ("v1", "tnt-a"), ("v1", "tnt-b"), ("v2", "tnt-a")]

    def ask(name: str, adapter: str | None, tenant: str) -> tuple[GenerateRequest, Events]:
        request = generate(f"{name}-{adapter}-{tenant}", FIRST + NEWS, adapter, tenant, logprobs=0)
        return request, made.run(request)[request.id]

    for adapter, tenant in asked:
        assert cached(ask("first", adapter, tenant)[1]) == 0
    for adapter, tenant in asked:
        request, events = ask("again", adapter, tenant)
        assert cached(events) >= len(FIRST + NEWS) - 1
        assert_same_answers(events, engine_of(family, 0).run(request)[request.id])


def test_what_is_kept_stays_within_the_budget_and_the_oldest_goes_first(family: LoadedBase) -> None:
    room = family.model.state_bytes(64) * 3
    made = engine_of(family, room)
    for i in range(8):
        made.run(generate(f"r{i}", [i, *FIRST], max_tokens=1))
        assert 0 < made.prefixes.stats().bytes <= room
    stats = made.prefixes.stats()
    assert stats.evictions > 0
    assert stats.kept < 8
    assert cached(made.run(generate("latest", [7, *FIRST, *NEWS]))["latest"]) == 1 + len(FIRST)
    assert cached(made.run(generate("oldest", [0, *FIRST, *NEWS]))["oldest"]) == 0


def test_prompts_whose_log_probabilities_are_wanted_are_run_whole(family: LoadedBase) -> None:
    made = engine_of(family, PLENTY)
    made.run(generate("first", FIRST))
    request = generate("echo", FIRST + NEWS, logprobs=1, prompt_logprobs=True)
    events = made.run(request)["echo"]
    assert cached(events) == 0
    assert events == engine_of(family, 0).run(request)["echo"]


def test_an_abandoned_answer_leaves_its_prompt_to_the_next(family: LoadedBase) -> None:
    made = engine_of(family, PLENTY)
    made.engine.submit(generate("gone", FIRST, max_tokens=50))
    while not any(isinstance(event, TextEvent) for event in made.engine.step().get("gone", [])):
        pass
    made.engine.abort(["gone"])
    request = generate("next", FIRST + NEWS, logprobs=1)
    events = made.run(request)["next"]
    assert cached(events) == len(FIRST)
    assert_same_answers(events, engine_of(family, 0).run(request)["next"])
