"""Sampling: greedy, filters, penalties, seeds, and the frequencies that come out."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.contracts.inference import SamplingParams
from workers.inference.sampler import candidates, choice_generator, next_token, penalize

LOGITS = torch.log(torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15]))


def params(**changes: float) -> SamplingParams:
    """Sampling parameters that change nothing but what is named."""
    base = SamplingParams(
        max_tokens=1, temperature=1, top_p=1, top_k=0, seed=0, n=1, stop=[], presence_penalty=0, frequency_penalty=0,
        logprobs=None, prompt_logprobs=False,
    )  # fmt: skip
    return base.model_copy(update=changes)


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (0, 1.0, [0, 1, 2, 3, 4]),
        (2, 1.0, [1, 3]),
        (99, 1.0, [0, 1, 2, 3, 4]),
        (0, 0.39, [1]),
        (0, 0.41, [1, 3]),
        (0, 0.69, [1, 3]),
        (0, 0.84, [1, 3, 4]),
        (2, 0.58, [1, 3]),
        (2, 0.56, [1]),
        (0, 0.0001, [1]),
    ],
)
def test_top_k_then_top_p(top_k: int, top_p: float, kept: list[int]) -> None:
    assert candidates(LOGITS, top_k, top_p).tolist() == kept


@given(
    seed=st.integers(0, 1000),
    spread=st.sampled_from([0.1, 1.0, 4.0]),
    top_p=st.floats(0.01, 0.999),
    top_k=st.integers(0, 900),
)
def test_the_nucleus_is_the_smallest_set_with_enough_probability(
    seed: int, spread: float, top_p: float, top_k: int
) -> None:
    logits = torch.randn(800, generator=torch.Generator().manual_seed(seed)) * spread
    ordered = torch.softmax(logits, 0).sort(descending=True)
    within = ordered.values[: top_k or None].double()
    mass = (within / within.sum()).cumsum(0)
    kept = candidates(logits, top_k, top_p)
    count = len(kept)
    assert kept.tolist() == sorted(ordered.indices[:count].tolist())
    assert mass[count - 1] >= top_p - 1e-5
    assert count == 1 or mass[count - 2] < top_p + 1e-5


def test_temperature_zero_is_greedy_and_draws_nothing() -> None:
    generator = choice_generator(1, 0)
    before = generator.get_state()
    assert next_token(LOGITS, params(temperature=0), generator, {}) == 1
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("temperature", [1e-300, 1e-6, 0.01])
def test_small_temperatures_stay_finite_and_greedy(temperature: float) -> None:
    assert next_token(LOGITS, params(temperature=temperature), choice_generator(1, 0), {}) == 1


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_frequencies_match_the_softmax(temperature: float) -> None:
    generator = choice_generator(7, 0)
    draws = 4000
    seen = Counter(next_token(LOGITS, params(temperature=temperature), generator, {}) for _ in range(draws))
    expected = torch.softmax(LOGITS / temperature, 0).tolist()
    # Five standard deviations of a binomial share.
    for token, share in enumerate(expected):
        assert abs(seen[token] / draws - share) < 5 * (share * (1 - share) / draws) ** 0.5


def test_a_choice_is_known_by_seed_and_index() -> None:
    def stream(seed: int, index: int) -> list[int]:
        generator = choice_generator(seed, index)
        return [next_token(torch.zeros(1000), params(), generator, {}) for _ in range(5)]

    assert stream(3, 0) == stream(3, 0)
    assert len({tuple(stream(seed, index)) for seed in (3, 4, -3, 2**63) for index in (0, 1)}) == 8


def test_penalties_follow_the_counts() -> None:
    logits = torch.zeros(4)
    changed = penalize(logits, {1: 1, 3: 4}, params(presence_penalty=0.5, frequency_penalty=0.25))
    assert changed.tolist() == [0, -0.75, 0, -1.5]
    assert logits.tolist() == [0, 0, 0, 0]
    assert next_token(LOGITS, params(temperature=0, presence_penalty=2.0), choice_generator(0, 0), {1: 1}) == 3
