"""Warm-up, peak and decay of the learning rate."""

import pytest

from app.contracts.training import Schedule
from workers.training.schedule import learning_rate


def _rates(total: int, warmup: int, schedule: Schedule = "cosine") -> list[float]:
    return [
        learning_rate(s, total_steps=total, warmup_steps=warmup, peak=1e-3, schedule=schedule)
        for s in range(1, total + 1)
    ]


def test_warm_up_is_linear_then_a_cosine_falls_to_a_tenth() -> None:
    rates = _rates(104, 4)
    assert rates[:4] == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3])
    assert rates[53] == pytest.approx(5.5e-4)
    assert rates[-1] == pytest.approx(1e-4)
    assert rates[3:] == sorted(rates[3:], reverse=True)


def test_a_constant_rate_stays_where_the_warm_up_ended() -> None:
    assert _rates(7, 4, "constant") == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3, 1e-3])
    assert _rates(2, 0, "constant") == [1e-3, 1e-3]


def test_without_warm_up_the_first_step_has_the_peak() -> None:
    assert _rates(10, 0)[0] == pytest.approx(1e-3)


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
@pytest.mark.parametrize(("total", "warmup"), [(1, 0), (1, 1), (3, 3), (3, 100)])
def test_short_runs_never_divide_by_zero_or_pass_the_peak(total: int, warmup: int, schedule: Schedule) -> None:
    assert all(0 < rate <= 1e-3 for rate in _rates(total, warmup, schedule))
