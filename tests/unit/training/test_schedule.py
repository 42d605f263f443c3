"""Warm-up, peak and decay of the learning rate."""

import pytest

from workers.training.schedule import learning_rate


def _rates(total: int, warmup: int) -> list[float]:
    return [learning_rate(s, total_steps=total, warmup_steps=warmup, peak=1e-3) for s in range(1, total + 1)]


def test_warm_up_is_linear_then_a_cosine_falls_to_a_tenth() -> None:
    rates = _rates(104, 4)
    assert rates[:4] == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3])
    assert rates[53] == pytest.approx(5.5e-4)
    assert rates[-1] == pytest.approx(1e-4)
    assert rates[3:] == sorted(rates[3:], reverse=True)


def test_without_warm_up_the_first_step_has_the_peak() -> None:
    assert _rates(10, 0)[0] == pytest.approx(1e-3)


@pytest.mark.parametrize(("total", "warmup"), [(1, 0), (1, 1), (3, 3), (3, 100)])
def test_short_runs_never_divide_by_zero_or_pass_the_peak(total: int, warmup: int) -> None:
    assert all(0 < rate <= 1e-3 for rate in _rates(total, warmup))
