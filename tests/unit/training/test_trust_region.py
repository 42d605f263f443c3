"""|new - old| <= max_delta for every scalar at every step, whatever the gradient, the rate and the decay."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.training.adamw import AdamWConfig, Moments, adamw_step
from workers.training.trust_region import apply_delta

FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTOR = st.lists(FLOAT32, min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    weights=VECTOR,
    gradients=st.lists(VECTOR, min_size=1, max_size=4),
    rate=st.floats(1e-12, 1e12),
    decay=st.floats(0, 1e6),
    max_delta=st.one_of(st.floats(1e-12, 1e6), st.just(0.05)),
    max_grad_norm=st.sampled_from([0.0, 1.0]),
)
def test_no_scalar_ever_moves_further_than_max_delta(
    weights: list[float],
    gradients: list[list[float]],
    rate: float,
    decay: float,
    max_delta: float,
    max_grad_norm: float,
) -> None:
    parameters = {"w": torch.tensor(weights)}
    moments: dict[str, Moments] = {}
    config = AdamWConfig(0.9, 0.999, 1e-8, decay, max_grad_norm, max_delta)
    for gradient in gradients:
        g = torch.tensor((gradient * len(weights))[: len(weights)])
        before = parameters["w"].clone()
        adamw_step(parameters, {"w": g}, moments, learning_rate=rate, config=config)
        moved = (parameters["w"].double() - before.double()).abs()
        assert moved.max().item() <= max_delta
        assert torch.isfinite(parameters["w"]).all()


@settings(max_examples=500, deadline=None)
@given(weight=FLOAT32, delta=FLOAT32, max_delta=st.floats(1e-45, 1e38))
def test_the_bound_survives_rounding_to_float32(weight: float, delta: float, max_delta: float) -> None:
    old = torch.tensor([weight])
    new, _ = apply_delta(old, torch.tensor([delta]), max_delta)
    assert (new.double() - old.double()).abs().item() <= max_delta


def test_the_share_of_held_back_scalars_is_reported() -> None:
    parameters = {"w": torch.tensor([0.0, 0.0, 0.0, 0.0])}
    config = AdamWConfig(0.9, 0.999, 1.0, 0.0, 0, 0.05)
    outcome = adamw_step(
        parameters, {"w": torch.tensor([100.0, -100.0, 1e-3, 0.0])}, {}, learning_rate=1.0, config=config
    )
    assert outcome.clamped == 0.5
    assert parameters["w"].abs().max().item() <= 0.05
    assert parameters["w"][2].item() == pytest.approx(-1e-3, rel=1e-2)


def test_weight_decay_counts_towards_the_bound() -> None:
    parameters = {"w": torch.tensor([100.0, -100.0])}
    config = AdamWConfig(0.9, 0.999, 1e-8, 1.0, 0, 0.05)
    adamw_step(parameters, {"w": torch.zeros(2)}, {}, learning_rate=0.5, config=config)
    assert parameters["w"].tolist() == pytest.approx([99.95, -99.95])
    assert (parameters["w"].double() - torch.tensor([100.0, -100.0]).double()).abs().max().item() <= 0.05


def test_zero_disables_the_bound() -> None:
    new, clamped = apply_delta(torch.tensor([1.0]), torch.tensor([-50.0]), 0)
    assert new.item() == -49.0
    assert clamped == 0


def test_nan_stays_visible_to_the_guard() -> None:
    new, _ = apply_delta(torch.tensor([1.0]), torch.tensor([math.nan]), 0.05)
    assert math.isnan(new.item())
