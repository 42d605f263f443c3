"""One AdamW step over named parameters: global clip, decoupled decay, trust region, and the NaN guard.

Moments are keyed by parameter name and each carries its own step count, so they stay right when the set of trained
parameters changes: a parameter that sits out a step keeps its moments untouched. Knows no model and no data.

Maths: Loshchilov and Hutter, Decoupled Weight Decay Regularization (ICLR 2019), as torch.optim.AdamW computes it:
    m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
    w = w - lr * (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + wd w)
Nothing is written until the whole step is known to be finite, so a refused step leaves no trace.
Shape letters: P = scalars of some parameters that share a step count, laid end to end.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from workers.training.trust_region import apply_delta

FLAT_SCALARS = 1 << 18
"""Small parameters are laid end to end up to about so many scalars: few calls, and temporaries that stay in cache."""


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
    """`grad_norm` is the L2 norm before the clip (may be non-finite).

    `clamped` is the share of scalars that the trust region held back, `scaled` the share in steps that a relative bound
    made shorter (None without one).
    """

    grad_norm: float
    clamped: float
    applied: bool
    scaled: float | None = None


@dataclass(frozen=True)
class Proposal:
    """Where a step would lead: new weights and moments by name, and how many scalars were held back."""

    weights: dict[str, Tensor]
    moments: dict[str, Moments]
    clamped: int
    finite: bool


class Bound(Protocol):
    """Makes a finite step shorter where it goes too far."""

    def shorten(self, parameters: Mapping[str, Tensor], weights: dict[str, Tensor]) -> int:
        """Replace proposed `weights` that go too far; return how many scalars those have."""
        ...


class Exchange(Protocol):
    """Shares a step among trainers, each of which proposes new weights for the parameters it owns."""

    def owned(self, names: Iterable[str]) -> Collection[str]:
        """Return those of all trained parameters that this trainer steps."""
        ...

    def gather(self, parameters: Mapping[str, Tensor], stepped: Collection[str], proposal: Proposal) -> Proposal:
        """Return the proposal with every trainer's weights of the `stepped` parameters, finite only if all are."""
        ...


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def _runs(names: Iterable[str], parameters: Mapping[str, Tensor], moments: Mapping[str, Moments]) -> list[list[str]]:
    """Return names that share a step count, in runs of about FLAT_SCALARS scalars."""
    by_steps: dict[int, list[list[str]]] = {}
    room: dict[int, int] = {}
    for name in names:
        seen = moments[name].step if name in moments else 0
        size = parameters[name].numel()
        runs = by_steps.setdefault(seen, [])
        if room.get(seen, 0) < size:
            runs.append([])
            room[seen] = FLAT_SCALARS
        runs[-1].append(name)
        room[seen] -= size
    return [run for runs in by_steps.values() for run in runs]


def global_norm(gradients: Iterable[Tensor]) -> float:
    """Return the L2 norm over all gradients, summed in float64; inf or nan if any scalar is."""
    squares = [torch.linalg.vector_norm(g, dtype=torch.float64).square() for g in gradients]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def _finite(t_P: Tensor) -> bool:
    """Return whether no scalar is infinite or NaN, which the smallest and the largest one show."""
    low, high = torch.aminmax(t_P)
    return math.isfinite(low) and math.isfinite(high)


def _update(
    w_P: Tensor, g_P: Tensor, m_P: Tensor, v_P: Tensor, *, step: int, learning_rate: float, config: AdamWConfig
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return weights and moments after step number `step` (from 1), and how many scalars were held back.

    The gradient and the moments are overwritten.
    """
    m_P.lerp_(g_P, 1 - config.beta1)
    v_P.mul_(config.beta2).addcmul_(g_P, g_P, value=1 - config.beta2)
    root_P = torch.sqrt(v_P, out=g_P).mul_((1 - config.beta2**step) ** -0.5).add_(config.eps)
    delta_P = torch.div(m_P, root_P, out=root_P).mul_(-learning_rate / (1 - config.beta1**step))
    if config.weight_decay:
        delta_P.add_(w_P, alpha=-learning_rate * config.weight_decay)
    w_P, clamped = apply_delta(w_P, delta_P, config.max_delta)
    return w_P, m_P, v_P, clamped


def _split(
    names: list[str], parameters: Mapping[str, Tensor], *flat: Tensor
) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """Yield each name with its views, in its parameter's shape, of the flat tensors."""
    sizes = [parameters[name].numel() for name in names]
    for name, *parts in zip(names, *(torch.split(t_P, sizes) for t_P in flat), strict=True):
        yield name, tuple(part.view(parameters[name].shape) for part in parts)


def propose(
    parameters: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    moments: Mapping[str, Moments],
    *,
    gradient_scale: float,
    learning_rate: float,
    config: AdamWConfig,
) -> Proposal:
    """Return the step of the parameters named in `gradients`; changes nothing.

    Stops at the first value that is not finite, so that such a proposal is not whole.
    """
    proposal = Proposal({}, {}, 0, finite=True)
    held_back = 0
    for names in _runs(gradients, parameters, moments):
        seen = moments[names[0]].step if names[0] in moments else 0
        w_P = _flat([parameters[n] for n in names])
        m_P = _flat([moments[n].m for n in names]) if seen else torch.zeros_like(w_P)
        v_P = _flat([moments[n].v for n in names]) if seen else torch.zeros_like(w_P)
        g_P = _flat([gradients[n] for n in names])
        if gradient_scale != 1:
            g_P *= gradient_scale
        w_P, m_P, v_P, clamped = _update(w_P, g_P, m_P, v_P, step=seen + 1, learning_rate=learning_rate, config=config)
        if not all(_finite(t_P) for t_P in (w_P, m_P, v_P)):
            return Proposal({}, {}, 0, finite=False)
        for name, (w, m, v) in _split(names, parameters, w_P, m_P, v_P):
            proposal.weights[name] = w
            proposal.moments[name] = Moments(m, v, seen + 1)
        held_back += clamped
    return Proposal(proposal.weights, proposal.moments, held_back, finite=True)


def adamw_step(
    parameters: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    moments: dict[str, Moments],
    *,
    learning_rate: float,
    config: AdamWConfig,
    bound: Bound | None = None,
    exchange: Exchange | None = None,
) -> StepOutcome:
    """Update the parameters named in `gradients`, and their moments, in place.

    Gradients have their parameter's shape and dtype. With a non-finite gradient, or an update that would make any
    weight or moment non-finite, nothing changes and `applied` is False. With an `exchange` this trainer steps what it
    owns and takes the others' weights; the norm that clips is that of all gradients.
    """
    grad_norm = global_norm(gradients.values())
    if not math.isfinite(grad_norm):
        return StepOutcome(grad_norm, 0.0, applied=False)
    scale = config.max_grad_norm / grad_norm if 0 < config.max_grad_norm < grad_norm else 1.0
    owned = parameters.keys() if exchange is None else exchange.owned(parameters)
    mine = {name: gradient for name, gradient in gradients.items() if name in owned}
    proposal = propose(parameters, mine, moments, gradient_scale=scale, learning_rate=learning_rate, config=config)
    if exchange is not None:
        proposal = exchange.gather(parameters, gradients.keys(), proposal)
    if not proposal.finite:
        return StepOutcome(grad_norm, 0.0, applied=False)
    scaled = None if bound is None else bound.shorten(parameters, proposal.weights)
    with torch.no_grad():
        for name, weight in proposal.weights.items():
            parameters[name].copy_(weight)
    moments |= proposal.moments
    total = max(1, sum(weight.numel() for weight in proposal.weights.values()))
    return StepOutcome(
        grad_norm, proposal.clamped / total, applied=True, scaled=None if scaled is None else scaled / total
    )
