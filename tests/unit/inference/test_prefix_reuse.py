"""A conversation's next turn starts from the kept state, and nothing but the time it takes tells so."""

from pathlib import Path

import pytest
import torch
from transformers import GraniteMoeHybridConfig, LlamaConfig, Mamba2Config, MambaConfig, PreTrainedConfig

from app.contracts.inference import DoneEvent, GenerateRequest, TextEvent
from app.contracts.training import LoRAConfig
from tests.models.conftest import load_small
from tests.models.families import save_family
from tests.unit.inference.conftest import Events, Harness, generate
from workers.loading import LoadedBase
from workers.lora.adapter import AdapterWeights, init_adapter

SIZES = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "bos_token_id": 1, "eos_token_id": 95}
ATTENTION = {"intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
MAMBA2 = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_chunk_size": 8}
KINDS = {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_local_experts": 0}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES | ATTENTION),
    "mamba": MambaConfig(**SIZES, state_size=8),
    "mamba2": Mamba2Config(**SIZES, state_size=16, num_heads=8, head_dim=8, n_groups=2, chunk_size=8),
    "hybrid": GraniteMoeHybridConfig(**SIZES | ATTENTION | MAMBA2 | KINDS, shared_intermediate_size=40),
}
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
    directory: Path = tmp_path_factory.mktemp(request.param)
    save_family(directory, CONFIGS[request.param])
    return load_small(directory)


def adapters_of(base: LoadedBase) -> dict[str, AdapterWeights]:
    """Two versions that change every answer."""
    made = {}
    for seed, name in enumerate(["v1", "v2"]):
        config = LoRAConfig(rank=4, alpha=4, targets=base.info.default_targets, seed=seed)
        made[name] = init_adapter(base.info.modules, config)
        for _, b_NR in made[name].tensors.values():
            b_NR.normal_(0, 0.3, generator=torch.Generator().manual_seed(seed))
    return made


def harness_of(base: LoadedBase, prefix_bytes: int = PLENTY, **options: int) -> Harness:
    """An engine over both versions."""
    return Harness(base, adapters_of(base), prefix_bytes=prefix_bytes, **options)


def tokens_of(events: Events) -> list[int]:
    """The generated token ids."""
    return [event.logprobs[0].token_id for event in events if isinstance(event, TextEvent)]


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
    made = harness_of(family)
    prompt = list(FIRST)
    for turn in range(3):
        request = generate(f"turn-{turn}", prompt, adapter, **SAMPLINGS[sampling])
        events = made.run(request)[request.id]
        assert_same_answers(events, harness_of(family, 0).run(request)[request.id])
        # All but the first prompt: the answer but for its last token, which was never run.
        assert cached(events) == (0 if turn == 0 else len(prompt) - len(NEWS) - 1)
        prompt += tokens_of(events) + NEWS
    assert made.prefixes.stats().hits == 2
    assert made.prefixes.stats().saved_tokens == 2 * (len(FIRST) + 7) + len(NEWS) + 8


def test_an_answer_that_the_template_writes_differently_reuses_what_came_before_it(family: LoadedBase) -> None:
    made = harness_of(family)
    answer = tokens_of(made.run(generate("first", FIRST, logprobs=0))["first"])
    rendered = [*answer[:3], (answer[3] + 1) % 90, 4, 2]
    request = generate("second", FIRST + rendered + NEWS, logprobs=1)
    events = made.run(request)["second"]
    assert cached(events) == len(FIRST) + (3 if "Llama" in family.info.architecture else 0)
    assert_same_answers(events, harness_of(family, 0).run(request)["second"])


def test_the_same_prompt_again_runs_one_token_at_most(family: LoadedBase, monkeypatch: pytest.MonkeyPatch) -> None:
    made = harness_of(family)
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
    made = harness_of(family, prefill_tokens=8)
    made.run(generate("first", FIRST, "v2", max_tokens=1))
    requests = [generate(f"r{i}", FIRST + NEWS[i:], "v2", temperature=1, seed=i, logprobs=1) for i in range(4)]
    together = made.run(*requests, stagger=2)
    for request in requests:
        assert cached(together[request.id]) >= len(FIRST)
        assert_same_answers(together[request.id], harness_of(family, 0).run(request)[request.id])


def test_nothing_crosses_tenants_or_versions(family: LoadedBase) -> None:
    made = harness_of(family)
    asked = [(None, "tnt-a"), (None, "tnt-b"), ("v1", "tnt-a"), ("v1", "tnt-b"), ("v2", "tnt-a")]

    def ask(name: str, adapter: str | None, tenant: str) -> tuple[GenerateRequest, Events]:
        request = generate(f"{name}-{adapter}-{tenant}", FIRST + NEWS, adapter, tenant, logprobs=0)
        return request, made.run(request)[request.id]

    for adapter, tenant in asked:
        assert cached(ask("first", adapter, tenant)[1]) == 0
    for adapter, tenant in asked:
        request, events = ask("again", adapter, tenant)
        assert cached(events) >= len(FIRST + NEWS) - 1
        assert_same_answers(events, harness_of(family, 0).run(request)[request.id])


def test_what_is_kept_stays_within_the_budget_and_the_oldest_goes_first(family: LoadedBase) -> None:
    room = family.model.state_bytes(64) * 3
    made = harness_of(family, room)
    for i in range(8):
        made.run(generate(f"r{i}", [i, *FIRST], max_tokens=1))
        assert 0 < made.prefixes.stats().bytes <= room
    stats = made.prefixes.stats()
    assert stats.evictions > 0
    assert stats.kept < 8
    assert cached(made.run(generate("latest", [7, *FIRST, *NEWS]))["latest"]) == 1 + len(FIRST)
    assert cached(made.run(generate("oldest", [0, *FIRST, *NEWS]))["oldest"]) == 0


def test_prompts_whose_log_probabilities_are_wanted_are_run_whole(family: LoadedBase) -> None:
    made = harness_of(family)
    made.run(generate("first", FIRST))
    request = generate("echo", FIRST + NEWS, logprobs=1, prompt_logprobs=True)
    events = made.run(request)["echo"]
    assert cached(events) == 0
    assert events == harness_of(family, 0).run(request)["echo"]


def test_an_abandoned_answer_leaves_its_prompt_to_the_next(family: LoadedBase) -> None:
    made = harness_of(family)
    made.engine.submit(generate("gone", FIRST, max_tokens=50))
    while not any(isinstance(event, TextEvent) for event in made.engine.step().get("gone", [])):
        pass
    made.engine.abort(["gone"])
    request = generate("next", FIRST + NEWS, logprobs=1)
    events = made.run(request)["next"]
    assert cached(events) == len(FIRST)
    assert_same_answers(events, harness_of(family, 0).run(request)["next"])
