"""One AdamW step over named parameters: global clip, decoupled decay, trust region, and the NaN guard.

Moments are keyed by parameter name and each carries its own step count, so they stay right when the set of trained
parameters changes: a parameter that sits out a step keeps its moments untouched. Knows no model and no data.

Maths: Loshchilov and Hutter, Decoupled Weight Decay Regularization (ICLR 2019), as torch.optim.AdamW computes it:
    m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
    w = w - lr * (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + wd w)
Nothing is written until the whole step is known to be finite, so a refused step leaves no trace.
Shape letters: P = scalars of all parameters that share a step count, laid end to end.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.trust_region import apply_delta


@dataclass(frozen=True)
class AdamWConfig:
    """`max_grad_norm` 0 switches the clip off, `max_delta` 0 the trust region."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    max_grad_norm: float
    max_delta: float


@dataclass
class Moments:
    """First and second moment of one parameter, in its shape and dtype, and how many steps they have seen."""

    m: Tensor
    v: Tensor
    step: int = 0


@dataclass(frozen=True)
class StepOutcome:
    """`grad_norm` is the L2 norm before the clip (may be non-finite); `clamped` the share of scalars held back."""

    grad_norm: float
    clamped: float
    applied: bool


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _names_by_step_count(gradients: Mapping[str, Tensor], moments: Mapping[str, Moments]) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for name in gradients:
        names.setdefault(moments[name].step if name in moments else 0, []).append(name)
    return names


def global_norm(gradients: Iterable[Tensor]) -> float:
    """Return the L2 norm over all gradients, summed in float64; inf or nan if any scalar is."""
    squares = [torch.linalg.vector_norm(g, dtype=torch.float64).square() for g in gradients]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def _update(
    w_P: Tensor, g_P: Tensor, m_P: Tensor, v_P: Tensor, *, step: int, learning_rate: float, config: AdamWConfig
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return weights and moments after step number `step` (from 1), and how many scalars were held back."""
    m_P = config.beta1 * m_P + (1 - config.beta1) * g_P
    v_P = config.beta2 * v_P + (1 - config.beta2) * g_P * g_P
    m_hat_P = m_P / (1 - config.beta1**step)
    root_P = (v_P / (1 - config.beta2**step)).sqrt()
    delta_P = -learning_rate * (m_hat_P / (root_P + config.eps) + config.weight_decay * w_P)
    w_P, clamped = apply_delta(w_P, delta_P, config.max_delta)
    return w_P, m_P, v_P, clamped


def adamw_step(
    parameters: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    moments: dict[str, Moments],
    *,
    learning_rate: float,
    config: AdamWConfig,
) -> StepOutcome:
    """Update the parameters named in `gradients`, and their moments, in place.

    Gradients have their parameter's shape and dtype. With a non-finite gradient, or an update that would make any
    weight or moment non-finite, nothing changes and `applied` is False.
    """
    grad_norm = global_norm(gradients.values())
    if not math.isfinite(grad_norm):
        return StepOutcome(grad_norm, 0.0, applied=False)
    scale = config.max_grad_norm / grad_norm if 0 < config.max_grad_norm < grad_norm else 1.0
    updates: list[tuple[list[str], int, Tensor, Tensor, Tensor]] = []
    held_back = total = 0
    for seen, names in _names_by_step_count(gradients, moments).items():
        w_P = _flat([parameters[n] for n in names])
        m_P = _flat([moments[n].m for n in names]) if seen else torch.zeros_like(w_P)
        v_P = _flat([moments[n].v for n in names]) if seen else torch.zeros_like(w_P)
        g_P = _flat([gradients[n] for n in names]) * scale
        w_P, m_P, v_P, clamped = _update(w_P, g_P, m_P, v_P, step=seen + 1, learning_rate=learning_rate, config=config)
        if not all(bool(torch.isfinite(t_P).all()) for t_P in (w_P, m_P, v_P)):
            return StepOutcome(grad_norm, 0.0, applied=False)
        updates.append((names, seen + 1, w_P, m_P, v_P))
        held_back, total = held_back + clamped, total + w_P.numel()
    for names, step, w_P, m_P, v_P in updates:
        _commit(parameters, moments, names, step, (w_P, m_P, v_P))
    return StepOutcome(grad_norm, held_back / total if total else 0.0, applied=True)


def _commit(
    parameters: Mapping[str, Tensor],
    moments: dict[str, Moments],
    names: list[str],
    step: int,
    flat: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Write weights into the parameters; the moments become views of the flat tensors, which nobody else holds."""
    sizes = [parameters[n].numel() for n in names]
    for name, w, m, v in zip(names, *(torch.split(t_P, sizes) for t_P in flat), strict=True):
        shape = parameters[name].shape
        with torch.no_grad():
            parameters[name].copy_(w.view(shape))
        moments[name] = Moments(m.view(shape), v.view(shape), step)
