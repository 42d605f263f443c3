"""What runs side by side: samples that no neighbour changes, prompts that share a step, places freed by an abort."""

import gc
import weakref
from collections.abc import Callable
from random import Random

import pytest

from app.contracts.inference import EmbedRequest, FinishEvent, GenerateRequest, TextEvent
from tests.unit.inference.conftest import Harness, generate
from tests.unit.inference.families import CONFIGS, engine_of, load_family, tokens_of
from workers.inference.state import Generation
from workers.loading import LoadedBase

Harnesses = Callable[..., Harness]
LONG = [(7 * i * i + 3 * i) % 90 for i in range(75)]
PLENTY = 10**8


@pytest.fixture(scope="module", params=list(CONFIGS))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedBase:
    """A tiny model of each kind."""
    return load_family(tmp_path_factory.mktemp(request.param), request.param)


def neighbours(random: Random) -> list[GenerateRequest]:
    """Requests of all sorts."""
    return [
        generate(
            f"other-{i}",
            LONG[random.randrange(40) :][: random.randint(1, 70)],
            random.choice([None, "v1", "v2"]),
            random.choice(["tnt-a", "tnt-b"]),
            max_tokens=random.randint(1, 20),
            temperature=random.choice([0, 1]),
            n=random.randint(1, 2),
            seed=random.randrange(99),
        )
        for i in range(random.randint(1, 6))
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_seeded_sample_is_the_same_in_any_company(family: LoadedBase, seed: int) -> None:
    random = Random(seed)
    mine = generate("mine", LONG[:41], "v1", temperature=1, top_p=0.95, seed=seed, n=2, max_tokens=12, logprobs=0)
    alone = engine_of(family).run(mine)["mine"]
    assert tokens_of(alone, 0) != tokens_of(alone, 1)
    for prefix_bytes in (0, PLENTY):
        made = engine_of(family, prefix_bytes, prefill_tokens=random.choice([5, 16, 64]), max_sequences=12)
        for _ in range(2):
            requests = [*neighbours(random), mine]
            random.shuffle(requests)
            together = made.run(*requests, stagger=random.randint(0, 2))["mine"]
            for index in range(2):
                assert tokens_of(together, index) == tokens_of(alone, index)


def test_a_stop_string_ends_one_choice_and_the_others_go_on(family: LoadedBase) -> None:
    options: dict[str, object] = {"temperature": 1, "seed": 5, "n": 3, "max_tokens": 14, "logprobs": 0}
    free = engine_of(family).run(generate("r", LONG[:9], **options))["r"]
    texts = ["".join(e.text for e in free if isinstance(e, TextEvent) and e.index == i) for i in range(3)]
    stop = texts[1][4:7]
    assert [stop in text for text in texts] == [False, True, False]
    events = engine_of(family).run(generate("r", LONG[:9], **options, stop=[stop]))["r"]
    stopped = ["".join(e.text for e in events if isinstance(e, TextEvent) and e.index == i) for i in range(3)]
    assert stopped == [texts[0], texts[1][: texts[1].index(stop)], texts[2]]
    reasons, before = ({e.index: e.reason for e in found if isinstance(e, FinishEvent)} for found in (events, free))
    assert before[1] == "length"
    assert reasons == {**before, 1: "stop"}


def test_a_short_prompt_does_not_wait_for_a_long_one_nor_the_long_one_for_many_short_ones(
    harness: Harnesses,
) -> None:
    engine = harness(prefill_tokens=8, max_sequences=20).engine
    engine.submit(generate("long", LONG))
    engine.step()
    for i in range(20):
        engine.submit(generate(f"short-{i}", LONG[i : i + 4], max_tokens=1))
        out = engine.step()
        if "long" in out:
            break
        assert any(isinstance(event, TextEvent) for event in out[f"short-{i}"])
    # 8 tokens in the first step, half of each step since.
    assert i == (len(LONG) - 8) // 4


def test_prompts_use_all_of_a_step(harness: Harnesses, base: LoadedBase, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    hidden = base.model.hidden
    monkeypatch.setattr(base.model, "hidden", lambda b, caches: (rows.append(sum(b.lengths)), hidden(b, caches))[1])
    engine = harness(prefill_tokens=10, max_sequences=8).engine
    for name, length in (("a", 30), ("b", 3), ("c", 40), ("d", 6)):
        engine.submit(generate(name, LONG[:length], max_tokens=1))
    while engine.busy:
        engine.step()
    assert rows == [10] * 7 + [9]


def test_prompts_take_less_of_a_step_while_others_decode(
    harness: Harnesses, base: LoadedBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    hidden = base.model.hidden
    monkeypatch.setattr(base.model, "hidden", lambda b, caches: (rows.append(sum(b.lengths)), hidden(b, caches))[1])
    made = harness(prefill_tokens=10, beside_tokens=4, max_sequences=8)
    made.engine.submit(generate("decodes", LONG[:12], max_tokens=4))
    made.engine.step()
    made.engine.step()
    made.engine.submit(generate("waits", LONG[:20], max_tokens=1))
    while made.engine.busy:
        made.engine.step()
    # Ten and two tokens of a prompt; three more of its answer, beside four each of the next; the rest of that alone.
    assert rows == [10, 2, 5, 5, 5, 8]


@pytest.mark.parametrize("when", ["waiting", "prompt", "decoding", "reading"])
def test_an_abort_frees_place_state_and_pin_within_a_step(harness: Harnesses, base: LoadedBase, when: str) -> None:
    made = harness(max_sequences=1, slots=1, state_bytes=base.model.state_bytes(128), prefill_tokens=16, read_tokens=8)
    engine = made.engine
    if when == "waiting":
        engine.submit(generate("runs", LONG[:5], "v2", max_tokens=3))
    if when == "reading":
        engine.submit(EmbedRequest(id="gone", base_model="tiny", adapter=None, sequences=[LONG]))
    else:
        engine.submit(generate("gone", LONG, "v1", max_tokens=50))
    engine.submit(generate("next", LONG[:16], "v2", max_tokens=50))
    for _ in range(7 if when == "decoding" else 1):
        engine.step()
    running = engine._running.get("gone")
    assert (running is None) == (when == "waiting")
    caches = []
    if isinstance(running, Generation):
        assert running.prefilling == (when == "prompt")
        caches = [weakref.ref(cache) for cache in (running.cache, *(choice.cache for choice in running.choices))]
    del running
    engine.abort(["gone"])
    out = engine.step()
    gc.collect()
    assert "gone" not in out
    assert "gone" not in engine.request_ids
    assert all(cache() is None for cache in caches)
    if when != "waiting":
        assert any(isinstance(event, TextEvent) for event in out["next"])
        assert engine._scheduler.state_bytes == base.model.state_bytes(16 + 50)
