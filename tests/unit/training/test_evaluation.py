"""The gate's data and its verdict."""

import math

import pytest

from app.text.tokenize import TokenizedExample
from workers.training.dataset import Dataset, Window, build_dataset, flatten
from workers.training.evaluation import perplexity, regression, split_for_gate


def _examples(n: int) -> Dataset:
    return build_dataset([TokenizedExample([i, i + 1, i + 2], [0, 1, 1]) for i in range(n)], 2)


def _firsts(windows: tuple[Window, ...]) -> list[int]:
    return sorted(w.token_ids[0] for w in windows)


@pytest.mark.parametrize(("n", "held"), [(10, 1), (19, 1), (40, 4), (1000, 32)])
def test_a_tenth_is_held_out_of_ten_or_more(n: int, held: int) -> None:
    data = _examples(n)
    split = split_for_gate(data, None, seed=5, carve=True)
    assert split.source == "held_out"
    assert len(split.judge) == held
    assert _firsts(split.train + split.judge) == list(range(n))
    assert split_for_gate(data, None, seed=5, carve=True) == split
    assert split_for_gate(data, None, seed=6, carve=True) != split


def test_fewer_than_ten_are_judged_on_the_training_text_itself() -> None:
    split = split_for_gate(_examples(9), _examples(0), seed=5, carve=True)
    assert split.source == "training_text"
    assert split.judge == split.train == flatten(_examples(9).examples)


def test_nothing_is_carved_where_nothing_will_be_judged() -> None:
    split = split_for_gate(_examples(40), None, seed=5, carve=False)
    assert split.source == "training_text"
    assert _firsts(split.train) == list(range(40))


def test_validation_examples_come_first_and_leave_training_whole() -> None:
    split = split_for_gate(_examples(20), _examples(3), seed=5, carve=True)
    assert split.source == "validation_file"
    assert _firsts(split.judge) == [0, 1, 2]
    assert _firsts(split.train) == list(range(20))


def test_the_verdict_allows_up_to_the_tolerance() -> None:
    assert regression(10.0, 12.5, 1.25, "held_out") is None
    assert regression(10.0, 9.0, 1.25, "held_out") is None
    assert regression(12.3, 80.1, 1.25, "held_out") == (
        "held-out perplexity rose from 12.3 to 80.1, more than the 1.25 times allowed"
    )
    assert regression(10.0, 8.0, 0.5, "training_text") == (
        "training-text perplexity only fell from 10 to 8, more than the 0.5 times allowed"
    )
    assert regression(10.0, 20.0, 1.25, "retention_file") == (
        "the model forgets: retention-file perplexity rose from 10 to 20, more than the 1.25 times allowed"
    )


@pytest.mark.parametrize("after", [math.inf, math.nan])
def test_a_perplexity_that_is_not_finite_never_passes(after: float) -> None:
    reason = regression(12.3, after, math.inf, "validation_file")
    assert reason == "validation perplexity rose from 12.3 to a value that is not finite"


def test_perplexity_overflows_to_infinity() -> None:
    assert perplexity(2 * math.log(3), 2) == pytest.approx(3)
    assert perplexity(1e6, 1) == math.inf
    assert perplexity(math.nan, 1) == math.inf
