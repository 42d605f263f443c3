"""A run in any mixture is the run alone: 50 optimizer steps in float32, to 1e-5 of the loss and 1e-4 of the weights.

Learning rates are such that 50 steps do not make much of the rounding of a sum: at ten times these, two orders of the
same rows already end apart, as they do in float64 to its own digits.
"""

from functools import cache

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.unit.training.mixtures import STEPS, Plan, assert_same, plan_of, run_alone, run_together
from tests.unit.training.tiny_families import FAMILY_NAMES, targets_of

RATE = 1e-3
alone = cache(run_alone)


def _maximal(family: str) -> list[Plan]:
    """Every mode, ranks, targets, lengths, batches, bounds and schedules of each kind; some come late or go early."""
    targets = targets_of(family)
    wide = {"targets": (*targets,), "rank": 1, "batch_size": 1, "gradient_accumulation": 3, "length": 12}
    half = {"targets": (*targets[::2],), "rank": 3, "batch_size": 2, "activation_checkpointing": True}
    return [
        plan_of(**wide, max_delta=5e-4, learning_rate=RATE),
        plan_of(targets=(targets[0],), rank=8, batch_size=4, length=3, learning_rate=2 * RATE, seed=3, joins=50),
        plan_of(mode="wsla", batch_size=3, max_relative_update=0.002, learning_rate=RATE, schedule="constant"),
        plan_of(**half, epochs=10, learning_rate=RATE, joins=300, leaves=None),
        plan_of(mode="full", batch_size=2, seq_len=5, learning_rate=RATE / 10, leaves=12),
    ]


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_run_of_a_mixture_of_everything_equals_the_run_alone(family: str) -> None:
    plans = _maximal(family)
    together, largest = run_together(family, plans, 96)
    assert largest > 64
    for plan, ours in zip(plans, together, strict=True):
        expected = alone(family, plan)
        assert_same(ours, expected)
        assert len(ours.losses) == (plan.leaves or STEPS)
        assert plan.leaves == 12 or sum(ours.losses[-5:]) < 0.95 * sum(ours.losses[:5])
    finished, expected = together[3].finished, alone(family, plans[3]).finished
    assert finished is not None
    assert expected is not None
    assert finished.adapter is not None
    assert finished.result.perplexity_after == pytest.approx(expected.result.perplexity_after, rel=1e-5)


def _any_plan(family: str) -> st.SearchStrategy[Plan]:
    """Return runs of mode lora and wsla."""
    targets = st.lists(st.sampled_from(targets_of(family)), min_size=1, max_size=4, unique=True)
    low_rank = st.fixed_dictionaries({"rank": st.sampled_from([1, 2, 5, 12]), "targets": targets.map(tuple)})
    training = {
        "learning_rate": st.sampled_from([RATE / 10, RATE, 2 * RATE]),
        "seq_len": st.sampled_from([5, 9, 32]),
        "batch_size": st.integers(1, 4),
        "gradient_accumulation": st.integers(1, 3),
        "max_delta": st.sampled_from([0.0, 5e-4]),
        "max_relative_update": st.sampled_from([None, 0.002]),
        "length": st.integers(3, 9),
        "joins": st.integers(0, 100),
        "leaves": st.sampled_from([7, STEPS, STEPS]),
    }
    modes = st.one_of(low_rank, st.just({"mode": "wsla"}))
    return st.builds(lambda mode, changes: plan_of(**mode, **changes), modes, st.fixed_dictionaries(training))


@pytest.mark.parametrize("family", FAMILY_NAMES)
@given(data=st.data(), tokens_per_pass=st.sampled_from([24, 64, 1024]))
@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
def test_any_mixture_equals_its_runs_alone(family: str, data: st.DataObject, tokens_per_pass: int) -> None:
    plans = data.draw(st.lists(_any_plan(family), min_size=2, max_size=3))
    together, _ = run_together(family, plans, tokens_per_pass)
    for plan, ours in zip(plans, together, strict=True):
        assert_same(ours, alone(family, plan))
        assert len(ours.losses) == plan.leaves
