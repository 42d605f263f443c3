"""What slices cost: by kind and token, the newest counting most, and one that raises counting too."""

import pytest

from workers.training.costs import NEWEST, SliceCosts


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def _spend(costs: SliceCosts, clock: Clock, kind: str, tokens: int, seconds: float) -> None:
    with costs.timing(kind, tokens, clock):
        clock.now += seconds


def test_nothing_is_expected_of_what_was_never_measured() -> None:
    costs, clock = SliceCosts(), Clock()
    assert costs.expected("forward", 100) == 0.0
    _spend(costs, clock, "backward", 10, 1.0)
    assert costs.expected("forward", 100) == 0.0


def test_a_slice_is_expected_to_cost_by_its_tokens() -> None:
    costs, clock = SliceCosts(), Clock()
    _spend(costs, clock, "forward", 100, 0.5)
    assert costs.expected("forward", 100) == pytest.approx(0.5)
    assert costs.expected("forward", 20) == pytest.approx(0.1)


def test_the_newest_counts_most_and_a_change_is_learnt() -> None:
    costs, clock = SliceCosts(), Clock()
    _spend(costs, clock, "forward", 10, 1.0)
    _spend(costs, clock, "forward", 10, 3.0)
    assert costs.expected("forward", 10) == pytest.approx(1.0 + NEWEST * 2.0)
    for _ in range(30):
        _spend(costs, clock, "forward", 10, 3.0)
    assert costs.expected("forward", 10) == pytest.approx(3.0, rel=1e-3)


def test_a_slice_that_raises_is_measured_too() -> None:
    costs, clock = SliceCosts(), Clock()

    def fail() -> None:
        with costs.timing("forward", 4, clock):
            clock.now += 2.0
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert costs.expected("forward", 4) == pytest.approx(2.0)
