"""Linear modules that share an input, fused into one weight, each with a seam for low-rank adapters.

Knows slots as numbers and low-rank factors as tensors; who fills a slot and why is not known here. A slot may also put
a tensor of its own in the place of a member's weight or bias.

Legend: T rows, K inputs, N outputs of all members, R ranks of all low-rank terms of the batch side by side.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from workers.kernels.lora_linear import add_low_rank_row, frozen_linear, lora_linear, low_rank_rows
from workers.kernels.packed_weight import can_pack, pack_weight
from workers.kernels.quantized_weight import Kind, QuantizedMatrix, quantize, quantized_linear
from workers.models.layers.context import BatchContext
from workers.models.weight import QuantizedRows, Weight

KEPT_JOINS = 32
"""Sets of slots whose joined factors are kept; a mixed batch changes its set whenever a sequence comes or goes."""


class LowRank(NamedTuple):
    """One slot's term of one module: delta weight = scale · B A."""

    a_RK: Tensor
    b_NR: Tensor
    scale: float


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

    def __init__(self, group: "LinearGroup", name: str, weight_NK: Tensor, bias_N: Tensor | None) -> None:
        self._group = group
        self.name = name
        self.out_features, self.in_features = weight_NK.shape
        self.weight = Weight(f"{name}.weight", weight_NK)
        self.bias = None if bias_N is None else Weight(f"{name}.bias", bias_N)
        self.delta: dict[int, LowRank] = {}

    def attach(self, slot: int, term: LowRank) -> None:
        """Give `slot` a term on this module. Raises ValueError when the shapes do not fit."""
        check_term(self.name, term, self.out_features, self.in_features)
        self.delta[slot] = term
        self._group.forget()

    def detach(self, slot: int) -> None:
        """Remove the term of `slot`, if any."""
        self.delta.pop(slot, None)
        self._group.forget()


def check_term(name: str, term: LowRank, out_features: int, in_features: int) -> None:
    """Raise ValueError naming the module when a term's factors do not fit its shape."""
    rank = term.a_RK.shape[0]
    expected = (rank, in_features), (out_features, rank)
    if (tuple(term.a_RK.shape), tuple(term.b_NR.shape)) != expected:
        raise ValueError(f"{name}: factors {tuple(term.a_RK.shape)}, {tuple(term.b_NR.shape)} are not {expected}")


class LinearGroup:
    """Modules with the same input as one matrix product; LoRA terms of all of them as two more.

    `members` are the modules' full names and output widths. With `bias` every member has one.
    """

    def __init__(
        self,
        members: dict[str, int],
        in_features: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        bias: bool = False,
    ) -> None:
        total = sum(members.values())
        self.weight_NK = torch.empty(total, in_features, device=device, dtype=dtype)
        self.bias_N = torch.empty(total, device=device, dtype=dtype) if bias else None
        self.members: list[AdaptedLinear] = []
        start = 0
        for name, out_features in members.items():
            rows = slice(start, start + out_features)
            own_bias_N = None if self.bias_N is None else self.bias_N[rows]
            self.members.append(AdaptedLinear(self, name, self.weight_NK[rows], own_bias_N))
            start += out_features
        self.quantized: QuantizedMatrix | None = None
        self._packed: Tensor | None = None
        self._served: dict[tuple[int, ...], Factors | None] = {}
        self._slot_weights: dict[int, tuple[list[Tensor], Tensor]] = {}

    def weights(self) -> list[Weight]:
        """Return the members' weights and biases."""
        return [w for m in self.members for w in (m.weight, m.bias) if w is not None]

    def freeze(self) -> None:
        """Declare the weight final: make the packed copy that small batches are fast with."""
        if self.quantized is None and can_pack(self.weight_NK):
            self._packed = pack_weight(self.weight_NK)

    def quantize(self, kind: Kind) -> None:
        """Hold the weight in fewer bits from now on. Raises ValueError naming the modules when a value does not fit."""
        try:
            self.quantized = quantize(self.weight_NK, kind)
        except ValueError as error:
            raise ValueError(f"{', '.join(member.name for member in self.members)}: {error}") from error
        start = 0
        for member in self.members:
            rows = slice(start, start + member.out_features)
            member.weight = QuantizedRows(member.weight.name, self.quantized, rows, self.weight_NK.dtype)
            start = rows.stop
        self.weight_NK = self.weight_NK.new_empty(0, self.weight_NK.shape[1])

    def forget(self) -> None:
        """Drop joined factors and weights; what is attached has changed."""
        self._served.clear()
        self._slot_weights.clear()

    def project(self, x_TK: Tensor, context: BatchContext) -> Tensor:
        """Return the members' outputs side by side [T, N]."""
        if self.quantized is not None:
            return self._project_quantized(x_TK, self.quantized, context)
        weight_NK, packed, bias_N = self.weight_NK, self._packed, self.bias_N
        if context.slot >= 0:
            weight_NK, packed, bias_N = self._of(context.slot)
        route = context.route
        factors = self._factors(route.slots) if route.slots else None
        if factors is None:
            y_TN = frozen_linear(x_TK, weight_NK, packed)
        elif factors.wide and x_TK.shape[0] == 1 and not torch.is_grad_enabled():
            y_TN = add_low_rank_row(frozen_linear(x_TK, weight_NK, packed), x_TK, *factors.wide)
        else:
            foreign_TR = None if route.slot_T is None else route.slot_T[:, None] != factors.slot_R[None, :]
            y_TN = lora_linear(x_TK, weight_NK, packed, a_RK=factors.a_RK, b_NR=factors.b_NR, foreign_TR=foreign_TR)
        return y_TN if bias_N is None else y_TN + bias_N

    def _project_quantized(self, x_TK: Tensor, quantized: QuantizedMatrix, context: BatchContext) -> Tensor:
        slot, route = context.slot, context.route
        if slot >= 0 and any(m.weight.changed_by(slot) for m in self.members):
            y_TN = linear(x_TK, self._fused(slot))
        else:
            y_TN = quantized_linear(x_TK, quantized)
        factors = self._factors(route.slots) if route.slots else None
        if factors is not None:
            foreign_TR = None if route.slot_T is None else route.slot_T[:, None] != factors.slot_R[None, :]
            y_TN = y_TN + low_rank_rows(x_TK, factors.a_RK, foreign_TR) @ factors.b_NR.T
        bias_N = self.bias_N if slot < 0 else self._bias_of(slot)
        return y_TN if bias_N is None else y_TN + bias_N

    def _of(self, slot: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return weight, packed copy and bias as `slot` computes with them."""
        weight_NK, packed = self.weight_NK, self._packed
        if any(m.weight.changed_by(slot) for m in self.members):
            weight_NK, packed = self._fused(slot), None
        return weight_NK, packed, self._bias_of(slot)

    def _bias_of(self, slot: int) -> Tensor | None:
        biases = [m.bias for m in self.members if m.bias is not None]
        if any(bias.changed_by(slot) for bias in biases):
            return torch.cat([bias.of(slot) for bias in biases])
        return self.bias_N

    def _fused(self, slot: int) -> Tensor:
        """Return the members' weights of `slot` as one; where nothing trains, it is made once for the same tensors."""
        parts = [member.weight.of(slot) for member in self.members]
        if len(parts) == 1:
            return parts[0]
        known = self._slot_weights.get(slot)
        if known is not None and all(a is b for a, b in zip(parts, known[0], strict=True)):
            return known[1]
        fused_NK = torch.cat(parts)
        if not any(part.requires_grad for part in parts):
            self._slot_weights[slot] = parts, fused_NK
        return fused_NK

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
