"""The norm of one step of a matrix, relative to the base weight: measured densely, after rounding to float32."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.training.adamw import AdamWConfig, Moments, adamw_step
from workers.training.relative_bound import Product, RelativeBound, _Change

UNBOUNDED = AdamWConfig(0.9, 0.999, 1e-8, 0.1, 0, 0)


def _random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _step_norm(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], scale: float) -> float:
    """Return the norm of scale · (B' A' - B A) from whole matrices."""
    product = {k: v["b"].double() @ v["a"].double() for k, v in (("old", before), ("new", after))}
    return abs(scale) * float(torch.linalg.matrix_norm(product["new"] - product["old"]))


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9)),
    magnitude=st.tuples(st.floats(-6, 4), st.floats(-6, 4)),
    rate=st.floats(1e-6, 1e3),
    share=st.floats(1e-7, 10),
    scale=st.floats(1e-2, 1e2),
    norm=st.floats(1e-3, 1e3),
    max_delta=st.sampled_from([0.0, 0.05]),
    zero_b=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_no_step_of_a_product_is_longer_than_its_share_of_the_base_norm(
    sizes: tuple[int, int, int],
    magnitude: tuple[float, float],
    rate: float,
    share: float,
    scale: float,
    norm: float,
    max_delta: float,
    zero_b: bool,
    seed: int,
) -> None:
    r, n, k = sizes
    parameters = {"a": _random(seed, r, k) * 10 ** magnitude[0], "b": _random(seed + 1, n, r) * 10 ** magnitude[1]}
    if zero_b:
        parameters["b"].zero_()
    moments: dict[str, Moments] = {}
    config = AdamWConfig(0.9, 0.999, 1e-8, 0.1, 0, max_delta)
    bound = RelativeBound(share, [Product("a", "b", scale, norm)], {})
    for step in range(3):
        gradients = {"a": _random(seed + 2 + step, r, k), "b": _random(seed + 9 + step, n, r)}
        before = {name: p.clone() for name, p in parameters.items()}
        outcome = adamw_step(parameters, gradients, moments, learning_rate=rate, config=config, bound=bound)
        assert outcome.applied
        assert _step_norm(before, parameters, scale) <= share * norm * (1 + 1e-9)
        if max_delta:
            moved = max((parameters[x].double() - before[x].double()).abs().max().item() for x in before)
            assert moved <= max_delta


@pytest.mark.parametrize("share", [1e-3, 0.3])
def test_a_step_that_is_too_long_is_shortened_to_about_the_bound_and_a_short_one_left_alone(share: float) -> None:
    def step(bound: RelativeBound | None) -> tuple[dict[str, torch.Tensor], float | None, float]:
        parameters = {"a": _random(1, 4, 30), "b": _random(2, 20, 4), "other": _random(3, 100)}
        before = {name: p.clone() for name, p in parameters.items()}
        gradients = {name: _random(7, *p.shape) for name, p in parameters.items()}
        outcome = adamw_step(parameters, gradients, {}, learning_rate=0.05, config=UNBOUNDED, bound=bound)
        return parameters, outcome.scaled, _step_norm(before, parameters, 2.0)

    plain, unscaled, length = step(None)
    assert unscaled is None
    shorter, scaled, now = step(RelativeBound(share, [Product("a", "b", 2.0, length)], {}))
    assert scaled == pytest.approx((4 * 30 + 20 * 4) / 300)
    assert 0.9 * share * length < now <= share * length
    assert torch.equal(shorter["other"], plain["other"])
    same, scaled, _ = step(RelativeBound(1.001, [Product("a", "b", 2.0, length)], {}))
    assert scaled == 0.0
    assert all(torch.equal(same[name], p) for name, p in plain.items())


def test_the_norm_from_gram_matrices_is_the_dense_one() -> None:
    old, new = [_random(1, 3, 11), _random(2, 7, 3)], [_random(3, 3, 11), _random(4, 7, 3)]
    a, b, da, db = (t.double() for t in (*old, new[0] - old[0], new[1] - old[1]))
    change = _Change(old, [old[0] + (new[0] - old[0]), old[1] + (new[1] - old[1])])
    for blocks, dense in (
        (((1, 0), (0, 1)), db @ a + b @ da),
        (((0, 1), (0, 0)), db @ da),
        (((1, 1), (0, 1)), (b + db) @ (a + da) - b @ a),
    ):
        assert change.norm(blocks) == pytest.approx(float(torch.linalg.matrix_norm(dense)), rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.floats(-6, 6), st.floats(1e-7, 2), st.floats(1e-6, 1e3), st.integers(0, 99))
def test_a_tensor_trained_by_itself_keeps_to_its_share(magnitude: float, share: float, rate: float, seed: int) -> None:
    parameters = {"w": _random(seed, 5, 3) * 10**magnitude}
    before = parameters["w"].clone().double()
    norm = float(before.norm())
    bound = RelativeBound(share, [], {"w": norm})
    adamw_step(parameters, {"w": _random(seed + 1, 5, 3)}, {}, learning_rate=rate, config=UNBOUNDED, bound=bound)
    assert float((parameters["w"].double() - before).norm()) <= share * norm


def test_where_the_base_is_zero_there_is_no_bound_and_no_gradient_is_no_step() -> None:
    parameters = {"w": torch.zeros(3), "a": torch.ones(1, 2), "b": torch.ones(2, 1)}
    bound = RelativeBound(0.1, [Product("a", "b", 1.0, 5.0)], {"w": 0.0})
    outcome = adamw_step(parameters, {"w": torch.ones(3)}, {}, learning_rate=1.0, config=UNBOUNDED, bound=bound)
    assert outcome.scaled == 0.0
    assert parameters["w"].tolist() == pytest.approx([-1.0] * 3)
    assert torch.equal(parameters["a"], torch.ones(1, 2))


def test_with_one_factor_alone_in_the_step_the_other_stays() -> None:
    parameters = {"a": _random(1, 2, 6), "b": _random(2, 5, 2)}
    before = {name: p.clone() for name, p in parameters.items()}
    bound = RelativeBound(0.01, [Product("a", "b", 1.0, 3.0)], {})
    adamw_step(parameters, {"a": _random(3, 2, 6)}, {}, learning_rate=1.0, config=UNBOUNDED, bound=bound)
    assert torch.equal(parameters["b"], before["b"])
    assert 0.02 < _step_norm(before, parameters, 1.0) <= 0.03


def test_the_last_bit_of_a_proposed_step_hardly_changes_the_shortened_one() -> None:
    """Gradients of a run are summed in another order beside other runs; whether rounding asks for a cut may differ."""
    for seed in range(40):
        before = _random(seed, 8, 16)
        proposed = before + 0.05 * _random(seed + 100, 8, 16)
        bound, steps = RelativeBound(0.002, [], {"w": float(before.norm())}), []
        for weight in (proposed, torch.nextafter(proposed, torch.tensor(torch.inf))):
            weights = {"w": weight}
            assert bound.shorten({"w": before}, weights) == before.numel()
            steps.append(weights["w"].double() - before.double())
        assert (steps[1] - steps[0]).norm() <= 1e-3 * steps[0].norm()
