"""Linear modules that share an input, fused into one weight, each with a seam for low-rank adapters.

Knows slots as numbers and low-rank factors as tensors; who fills a slot and why is not known here. A slot may also put
a tensor of its own in the place of a member's weight or bias.

Legend: T rows, K inputs, N outputs of all members, R rank.
"""

from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn.functional import linear

from workers.kernels.lora_linear import Term, frozen_linear, lora_linear, lora_terms
from workers.kernels.packed_weight import can_pack, pack_weight
from workers.kernels.quantized_weight import Kind, QuantizedMatrix, quantize, quantized_linear
from workers.models.layers.context import BatchContext, Segment
from workers.models.layers.factor_stack import FactorStack, LowRank, Terms
from workers.models.weight import QuantizedRows, Weight


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
        self._group.forget(slot)

    def detach(self, slot: int) -> None:
        """Remove the term of `slot`, if any."""
        self.delta.pop(slot, None)
        self._group.forget(slot)

    def stacked_bytes(self, rank: int) -> int:
        """Return what a term of this rank takes in the stack."""
        return self._group.stack.bytes_of(rank, self.out_features)


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
        self._outputs = [slice(*ends) for ends in pairwise(accumulate(members.values(), initial=0))]
        self._terms: dict[int, Terms] = {}
        self.stack = FactorStack(list(members.values()), in_features, self.weight_NK)
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

    def forget(self, slot: int) -> None:
        """Notice that the terms of a slot have changed."""
        self.stack.forget(self._terms.pop(slot, None))
        self._slot_weights.pop(slot, None)
        terms = tuple(member.delta.get(slot) for member in self.members)
        if any(terms):
            self._terms[slot] = terms

    def project(self, x_TK: Tensor, context: BatchContext) -> Tensor:
        """Return the members' outputs side by side [T, N]."""
        terms = [term for segment in context.adapted for term in self._terms_of(segment)]
        if not context.dense and self.quantized is None:
            if terms:
                y_TN = lora_linear(x_TK, self.weight_NK, self._packed, terms)
            else:
                y_TN = frozen_linear(x_TK, self.weight_NK, self._packed)
        else:
            y_TN = context.by_part([member.weight for member in self.members], x_TK, self._product)
            if terms:
                y_TN = y_TN + lora_terms(x_TK, self._outputs[-1].stop, terms)
        if context.stacked is not None:
            self.stack.add(y_TN, x_TK, context.stacked, self._terms)
        if self.bias_N is None:
            return y_TN
        biases = [member.bias for member in self.members if member.bias is not None]
        return context.by_part(biases, y_TN, lambda part_TN, slot: part_TN + self._bias_of(slot, biases))

    def _terms_of(self, segment: Segment) -> list[Term]:
        present = zip(self._outputs, self._terms.get(segment.slot, ()), strict=False)
        return [Term(segment.rows, outputs, *term) for outputs, term in present if term is not None]

    def _product(self, x_TK: Tensor, slot: int) -> Tensor:
        """Return x Wᵀ with the weight that `slot` computes with."""
        if slot >= 0:
            return linear(x_TK, self._fused(slot))
        if self.quantized is not None:
            return quantized_linear(x_TK, self.quantized)
        return frozen_linear(x_TK, self.weight_NK, self._packed)

    def _bias_of(self, slot: int, biases: list[Weight]) -> Tensor:
        assert self.bias_N is not None
        return self.bias_N if slot < 0 else torch.cat([bias.of(slot) for bias in biases])

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
