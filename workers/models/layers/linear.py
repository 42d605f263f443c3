"""Linear modules that share an input, fused into one weight, each with a seam for low-rank adapters.

Knows slots as numbers and low-rank factors as tensors; who fills a slot and why is not known here.

Legend: T rows, K inputs, N outputs of all members, R ranks of all low-rank terms of the batch side by side.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from workers.kernels.lora_linear import add_low_rank_row, frozen_linear, lora_linear
from workers.kernels.packed_weight import can_pack, pack_weight

KEPT_JOINS = 32
"""Sets of slots whose joined factors are kept; a mixed batch changes its set whenever a sequence comes or goes."""


class LowRank(NamedTuple):
    """One slot's term of one module: delta weight = scale · B A."""

    a_RK: Tensor
    b_NR: Tensor
    scale: float


@dataclass(frozen=True)
class Route:
    """Which slots a batch uses, ascending, and each row's slot (None when one slot holds every row)."""

    slots: tuple[int, ...]
    slot_T: Tensor | None


def make_route(slots: list[int], lengths: list[int], device: torch.device) -> Route:
    """Return the route of sequences with these slots (-1: base only) and lengths."""
    used = tuple(sorted({slot for slot in slots if slot >= 0}))
    if not used or all(slot == used[0] for slot in slots):
        return Route(used, None)
    per_sequence = torch.tensor(slots, device=device)
    return Route(used, per_sequence.repeat_interleave(torch.tensor(lengths, device=device)))


class Factors(NamedTuple):
    """All terms of a set of slots, joined: A [R, K], scaled B [N, R], and the slot of each of the R columns.

    `wide` holds Aᵀ and Bᵀ in float32 for single rows, where the weight is packed and nothing trains.
    """

    a_RK: Tensor
    b_NR: Tensor
    slot_R: Tensor
    wide: tuple[Tensor, Tensor] | None


class AdaptedLinear:
    """A named module: some rows of a fused weight, and the low-rank terms attached to it by slot."""

    def __init__(self, group: "LinearGroup", name: str, start: int, out_features: int) -> None:
        self._group = group
        self.name = name
        self.rows = slice(start, start + out_features)
        self.out_features = out_features
        self.in_features = group.weight_NK.shape[1]
        self.delta: dict[int, LowRank] = {}

    @property
    def weight(self) -> Tensor:
        """The module's own weight [out_features, in_features], a view."""
        return self._group.weight_NK[self.rows]

    def attach(self, slot: int, term: LowRank) -> None:
        """Give `slot` a term on this module. Raises ValueError when the shapes do not fit."""
        rank = term.a_RK.shape[0]
        expected = (rank, self.in_features), (self.out_features, rank)
        if (tuple(term.a_RK.shape), tuple(term.b_NR.shape)) != expected:
            raise ValueError(
                f"{self.name}: factors {tuple(term.a_RK.shape)}, {tuple(term.b_NR.shape)} are not {expected}"
            )
        self.delta[slot] = term
        self._group.forget()

    def detach(self, slot: int) -> None:
        """Remove the term of `slot`, if any."""
        self.delta.pop(slot, None)
        self._group.forget()


class LinearGroup(nn.Module):
    """Modules with the same input as one matrix product; LoRA terms of all of them as two more."""

    def __init__(self, members: dict[str, int], in_features: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        total = sum(members.values())
        self.weight_NK = nn.Parameter(torch.empty(total, in_features, device=device, dtype=dtype), requires_grad=False)
        self.members: list[AdaptedLinear] = []
        start = 0
        for name, out_features in members.items():
            self.members.append(AdaptedLinear(self, name, start, out_features))
            start += out_features
        self._packed: Tensor | None = None
        self._served: dict[tuple[int, ...], Factors | None] = {}

    def freeze(self) -> None:
        """Declare the weight final: make the packed copy that small batches are fast with."""
        self.weight_NK.requires_grad_(False)
        if can_pack(self.weight_NK):
            self._packed = pack_weight(self.weight_NK)

    def forget(self) -> None:
        """Drop joined factors; the attached terms have changed."""
        self._served.clear()

    def project(self, x_TK: Tensor, route: Route) -> Tensor:
        """Return the members' outputs side by side [T, N].

        A plain method: a decoded token asks a hundred groups, and a module's call costs each of them a microsecond.
        """
        factors = self._factors(route.slots) if route.slots else None
        if factors is None:
            return frozen_linear(x_TK, self.weight_NK, self._packed)
        if factors.wide and x_TK.shape[0] == 1 and not torch.is_grad_enabled():
            return add_low_rank_row(frozen_linear(x_TK, self.weight_NK, self._packed), x_TK, *factors.wide)
        foreign_TR = None if route.slot_T is None else route.slot_T[:, None] != factors.slot_R[None, :]
        return lora_linear(
            x_TK, self.weight_NK, self._packed, a_RK=factors.a_RK, b_NR=factors.b_NR, foreign_TR=foreign_TR
        )

    def _factors(self, slots: tuple[int, ...]) -> Factors | None:
        if slots in self._served:
            return self._served[slots]
        terms = [m.delta[slot] for m in self.members for slot in slots if slot in m.delta]
        if any(term.a_RK.requires_grad for term in terms):
            return self._join(slots, serve=False)
        if len(self._served) >= KEPT_JOINS:
            self._served.clear()
        self._served[slots] = self._join(slots, serve=True)
        return self._served[slots]

    def _join(self, slots: tuple[int, ...], *, serve: bool) -> Factors | None:
        a_parts, b_parts, column_slots = [], [], []
        for slot in slots:
            terms = [member.delta.get(slot) for member in self.members]
            present = [term for term in terms if term is not None]
            if not present:
                continue
            a_parts += [term.a_RK for term in present]
            blocks = [
                self.weight_NK.new_empty(member.out_features, 0) if term is None else term.b_NR * term.scale
                for member, term in zip(self.members, terms, strict=True)
            ]
            b_parts.append(blocks[0] if len(blocks) == 1 else torch.block_diag(*blocks))
            column_slots += [slot] * sum(len(term.a_RK) for term in present)
        if not a_parts:
            return None
        dtype, device = self.weight_NK.dtype, self.weight_NK.device
        a_RK, b_NR = torch.cat(a_parts).to(dtype), torch.cat(b_parts, dim=1).to(dtype)
        wide = (a_RK.float().T, b_NR.float().T.contiguous()) if serve and self._packed is not None else None
        return Factors(a_RK, b_NR, torch.tensor(column_slots, device=device), wide)
