"""Bounds what one step does to a whole weight matrix: the norm of its change against the norm of the base weight.

Low-rank factors change their product by D = s (B' A' - B A), with B' = B + dB and A' = A + dA, which is
s [dB B] M [A; dA] with M = [[1, 1], [0, 1]] acting on blocks of size R. Its Frobenius norm needs no N x K matrix:
|L M R|^2 = sum((M^T L^T L M) * (R R^T)), two Gram matrices of size 2R.

A step that is too long is shortened by taking t dB and t dA with 0 < t < 1. Then
|D(t)| <= s (t P + t^2 Q), P = |dB A + B dA|, Q = |dB dA|, by the triangle inequality, so the positive root t of
t P + t^2 Q = limit / s keeps the bound. What is stored is rounded, so the stored step is measured again.

Knows parameters by name and norms; not where they come from. Letters: R rank, K inputs, N outputs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

ROUNDING = 1e-12
"""More than the relative error of a Gram matrix of float64 vectors, added so that a norm is never taken too small."""
FIRST_CUT = 2.0**-20
"""A step that rounding makes too long is cut by this share, then by twice as much each time, up to a half.

Small, because whether rounding asks for a cut hangs on the last bit: two ways to add up a gradient must not part there.
"""
MAX_CUTS = 80


class Product(NamedTuple):
    """Names of two factors, the scale of their product, and the norm of the base weight it is added to."""

    a: str
    b: str
    scale: float
    base_norm: float


class _Change:
    """How far a pair of factors moves its product."""

    def __init__(self, old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
        (a_RK, b_NR), (da_RK, db_NR) = _doubles(old), _differences(old, new)
        left, right = torch.cat([db_NR.T, b_NR.T]), torch.cat([a_RK, da_RK])
        self._left, self._right = left @ left.T, right @ right.T
        self._rank = len(a_RK)

    def norm(self, blocks: Sequence[Sequence[float]]) -> float:
        """Return an upper bound, tight up to rounding, of |[dB B] M [A; dA]| with M these 2 x 2 blocks."""
        eye = torch.eye(self._rank, dtype=torch.float64, device=self._left.device)
        m = torch.kron(torch.tensor(blocks, dtype=torch.float64, device=self._left.device), eye)
        square = ((m.T @ self._left @ m) * self._right).sum().clamp(min=0)
        lengths = (m.T @ self._left.diagonal().sqrt()) @ self._right.diagonal().sqrt()
        return float((square + ROUNDING * lengths.square()).sqrt())


def _doubles(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach().double() for t in tensors]


def _differences(old: Sequence[Tensor], new: Sequence[Tensor]) -> list[Tensor]:
    return [n - o for n, o in zip(_doubles(new), _doubles(old), strict=True)]


def _whole_change(old: Sequence[Tensor], new: Sequence[Tensor]) -> float:
    return _Change(old, new).norm(((1, 1), (0, 1)))


def _own_change(old: Sequence[Tensor], new: Sequence[Tensor]) -> float:
    (delta,) = _differences(old, new)
    return float(torch.linalg.vector_norm(delta)) * (1 + ROUNDING)


def _share_of_product(old: Sequence[Tensor], new: Sequence[Tensor], limit: float) -> float:
    """Return t with t P + t^2 Q = limit, in the form that does not cancel."""
    change = _Change(old, new)
    p, q = change.norm(((1, 0), (0, 1))), change.norm(((0, 1), (0, 0)))
    return min(1.0, 2 * limit / (p + math.sqrt(p * p + 4 * q * limit)))


def _shortened(
    old: Sequence[Tensor],
    new: Sequence[Tensor],
    share: float,
    limit: float,
    measure: Callable[[Sequence[Tensor], Sequence[Tensor]], float],
) -> list[Tensor]:
    """Return `old` moved by `share` of the way to `new`, less where rounding to the parameters' dtype overshoots."""
    for attempt in range(MAX_CUTS):
        tried = [_between(o.detach(), n, share) for o, n in zip(old, new, strict=True)]
        if measure(old, tried) <= limit:
            return tried
        share *= 1 - min(0.5, FIRST_CUT * 2.0**attempt)
    return [o.detach().clone() for o in old]


def _between(old: Tensor, new: Tensor, share: float) -> Tensor:
    """Never outside [old, new], so that a bound on each scalar's change still holds."""
    moved = (old.double() + share * (new.double() - old.double())).to(old.dtype)
    return moved.clamp(torch.minimum(old, new), torch.maximum(old, new))


@dataclass(frozen=True)
class RelativeBound:
    """No product, and no tensor named in `base_norms`, moves further in a step than `share` of its base norm.

    Where the base norm is zero there is nothing to compare with, and no bound.
    """

    share: float
    products: Sequence[Product]
    base_norms: Mapping[str, float]

    def shorten(self, parameters: Mapping[str, Tensor], weights: dict[str, Tensor]) -> int:
        """Replace proposed `weights` that go too far; return how many scalars those have."""
        return sum(self._product(p, parameters, weights) for p in self.products) + sum(
            self._tensor(name, norm, parameters, weights) for name, norm in self.base_norms.items()
        )

    def _product(self, product: Product, parameters: Mapping[str, Tensor], weights: dict[str, Tensor]) -> int:
        names = (product.a, product.b)
        limit = self.share * product.base_norm / abs(product.scale)
        if limit == 0 or not any(name in weights for name in names):
            return 0
        old = [parameters[name] for name in names]
        new = [weights.get(name, parameters[name].detach()) for name in names]
        if _whole_change(old, new) <= limit:
            return 0
        shorter = _shortened(old, new, _share_of_product(old, new, limit), limit, _whole_change)
        weights.update({name: t for name, t in zip(names, shorter, strict=True) if name in weights})
        return sum(t.numel() for name, t in zip(names, shorter, strict=True) if name in weights)

    def _tensor(self, name: str, norm: float, parameters: Mapping[str, Tensor], weights: dict[str, Tensor]) -> int:
        limit = self.share * norm
        if limit == 0 or name not in weights:
            return 0
        old, new = [parameters[name]], [weights[name]]
        length = _own_change(old, new)
        if length <= limit:
            return 0
        (weights[name],) = _shortened(old, new, limit / length, limit, _own_change)
        return weights[name].numel()
