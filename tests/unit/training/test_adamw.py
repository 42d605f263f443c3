"""AdamW against torch.optim.AdamW, moments by name, the clip, and the NaN guard."""

import math

import pytest
import torch

from workers.training.adamw import AdamWConfig, Moments, adamw_step, global_norm

PLAIN = AdamWConfig(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, max_grad_norm=0, max_delta=0)


def _parameters(dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "q.lora_A": torch.randn(4, 7, generator=generator, dtype=dtype),
        "q.lora_B": torch.randn(5, 4, generator=generator, dtype=dtype),
        "k.lora_A": torch.randn(3, generator=generator, dtype=dtype),
    }


def _gradients(parameters: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(p.shape, generator=generator, dtype=p.dtype) for n, p in parameters.items()}


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.7])
def test_equals_torch_over_50_steps_in_float64(max_grad_norm: float) -> None:
    ours = _parameters()
    theirs = {n: torch.nn.Parameter(p.clone()) for n, p in ours.items()}
    optimizer = torch.optim.AdamW(theirs.values(), lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    moments: dict[str, Moments] = {}
    config = AdamWConfig(0.9, 0.95, 1e-8, 0.1, max_grad_norm, 0)
    for step in range(50):
        rate = 0.01 / (1 + step)
        gradients = _gradients(ours, step)
        for name, p in theirs.items():
            p.grad = gradients[name].clone()
        norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients.values()])).item()
        if max_grad_norm:
            for p in theirs.values():
                p.grad *= max_grad_norm / norm
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        outcome = adamw_step(ours, gradients, moments, learning_rate=rate, config=config)
        assert outcome.applied
        assert outcome.clamped == 0.0
        assert outcome.grad_norm == pytest.approx(norm, rel=1e-12)
    for name, p in theirs.items():
        assert (ours[name] - p.detach()).abs().max() <= 1e-12
        assert moments[name].step == 50


def test_moments_survive_a_change_of_the_trained_set() -> None:
    """A parameter that sits out steps keeps its own moments and step count, as an optimizer of its own would."""
    ours = _parameters()
    alone = {"k.lora_A": ours["k.lora_A"].clone()}
    moments: dict[str, Moments] = {}
    moments_alone: dict[str, Moments] = {}
    for step in range(12):
        gradients = _gradients(ours, step)
        if step % 3 == 0:
            adamw_step(alone, {"k.lora_A": gradients["k.lora_A"]}, moments_alone, learning_rate=0.01, config=PLAIN)
        else:
            kept = moments["k.lora_A"].m.clone()
            del gradients["k.lora_A"]
        adamw_step(ours, gradients, moments, learning_rate=0.01, config=PLAIN)
        if step % 3:
            assert torch.equal(moments["k.lora_A"].m, kept)
    assert moments["k.lora_A"].step == 4
    assert moments["q.lora_A"].step == 12
    assert torch.equal(ours["k.lora_A"], alone["k.lora_A"])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_gradient_reaches_no_weight_and_no_moment(bad: float) -> None:
    parameters = _parameters(torch.float32)
    moments: dict[str, Moments] = {}
    adamw_step(parameters, _gradients(parameters, 0), moments, learning_rate=0.01, config=PLAIN)
    before = {n: (p.clone(), moments[n].m.clone(), moments[n].v.clone()) for n, p in parameters.items()}
    gradients = _gradients(parameters, 1)
    gradients["k.lora_A"][1] = bad
    outcome = adamw_step(parameters, gradients, moments, learning_rate=0.01, config=PLAIN)
    assert not outcome.applied
    assert not math.isfinite(outcome.grad_norm)
    for name, (p, m, v) in before.items():
        assert torch.equal(parameters[name], p)
        assert torch.equal(moments[name].m, m)
        assert torch.equal(moments[name].v, v)
        assert moments[name].step == 1


def test_an_update_that_overflows_is_refused_although_the_gradient_is_finite() -> None:
    parameters = {"w": torch.tensor([1.0, 3e38])}
    moments: dict[str, Moments] = {}
    config = AdamWConfig(0.9, 0.95, 1e-8, 1.0, 0, 0)
    outcome = adamw_step(parameters, {"w": torch.ones(2)}, moments, learning_rate=10.0, config=config)
    assert not outcome.applied
    assert parameters["w"].tolist() == pytest.approx([1.0, 3e38])
    assert not moments


def test_the_norm_is_exact_where_float32_squares_would_overflow() -> None:
    assert global_norm([torch.full((4,), 1e30)]) == pytest.approx(2e30)
    assert global_norm([]) == 0.0


def test_the_clip_bounds_the_gradient_that_enters_the_moments() -> None:
    parameters = {"w": torch.zeros(4, dtype=torch.float64)}
    moments: dict[str, Moments] = {}
    config = AdamWConfig(0.0, 0.95, 1e-8, 0.0, 1.0, 0)
    gradient = torch.full((4,), 3.0, dtype=torch.float64)
    outcome = adamw_step(parameters, {"w": gradient}, moments, learning_rate=0.01, config=config)
    assert outcome.grad_norm == pytest.approx(6.0)
    assert moments["w"].m.norm().item() == pytest.approx(1.0)
