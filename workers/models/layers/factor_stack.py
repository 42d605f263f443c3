"""Low-rank factors of many slots, stacked by place: one batched product adds the terms of all their rows. No autograd.

Factors of a mixed batch are zero-padded to one rank. A place is filled when its slot is first used there and again when
the slot's factors have been exchanged. On a CPU the stack is float32 whatever the model's dtype: at one row a place
it multiplies small float32 matrices several times faster than bfloat16 ones. Each place's rows are a product of their
own, so a value that is not finite stays with its slot.

Legend: T rows, K inputs, N outputs of all members, P places, M rows of a place, R ranks of all members side by side.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from workers.models.layers.places import StackedRows


class LowRank(NamedTuple):
    """One slot's term of one module: delta weight = scale · B A."""

    a_RK: Tensor
    b_NR: Tensor
    scale: float


Terms = tuple[LowRank | None, ...]
"""A slot's term on each member of a group; empty where it has none at all."""


class FactorStack:
    """The stack of one group of modules that share an input; `outputs` are the members' widths."""

    def __init__(self, outputs: Sequence[int], in_features: int, like: Tensor) -> None:
        self._outputs, self._inputs = list(outputs), in_features
        dtype = torch.promote_types(like.dtype, torch.float32) if like.device.type == "cpu" else like.dtype
        self._rank = 0
        self._a_PKR = torch.empty(0, in_features, 0, device=like.device, dtype=dtype)
        self._b_PRN = torch.empty(0, 0, sum(outputs), device=like.device, dtype=dtype)
        self._held: list[Terms | None] = []
        """What each place is filled with; None: nobody's or a former slot's, to be overwritten before it is used."""

    def add(self, y_TN: Tensor, x_TK: Tensor, rows: StackedRows, terms: dict[int, Terms]) -> None:
        """Add the terms of the rows' slots to y in place."""
        present = [terms.get(slot, ()) for _, slot in rows.places]
        if not any(present):
            return
        self._hold(rows, present)
        x_TK = x_TK.to(self._a_PKR.dtype)
        exchange = rows.exchange
        if exchange is None:
            for (place, _), span, held in zip(rows.places, rows.spans, present, strict=True):
                if held:
                    y_TN[span] += torch.mm(torch.mm(x_TK[span], self._a_PKR[place]), self._b_PRN[place])
            return
        count, gather_PM, back_R = exchange.count, exchange.gather_PM, exchange.back_R
        x_XK = x_TK[exchange.spans[0]] if gather_PM is None else x_TK.index_select(0, gather_PM)
        x_PMK = x_XK.view(count, -1, self._inputs)
        z_XN = torch.bmm(torch.bmm(x_PMK, self._a_PKR[:count]), self._b_PRN[:count]).flatten(0, 1)
        z_RN = z_XN if back_R is None else z_XN.index_select(0, back_R)
        first = 0
        for span in exchange.spans:
            y_TN[span] += z_RN[first : first + span.stop - span.start]
            first += span.stop - span.start

    def bytes_of(self, rank: int) -> int:
        """Return what one member's columns of a place take."""
        return rank * (self._inputs + sum(self._outputs)) * self._a_PKR.element_size()

    def forget(self, terms: Terms | None) -> None:
        """Let go of a slot's terms."""
        self._held = [None if held is terms else held for held in self._held]

    def _hold(self, rows: StackedRows, present: Sequence[Terms]) -> None:
        """Fill the places of these rows, where they are not filled yet."""
        count = max(place for place, _ in rows.places) + 1 if rows.exchange is None else rows.exchange.count
        self._grow(count, max(len(t.a_RK) for terms in present for t in terms if t is not None))
        for (place, _), terms in zip(rows.places, present, strict=True):
            if self._held[place] is not terms:
                self._fill(place, terms)

    def _grow(self, places: int, rank: int) -> None:
        if places <= len(self._held) and rank <= self._rank:
            return
        rank = max(rank, self._rank)
        if rank > self._rank:
            self._held = [None] * len(self._held)
        more = max(places, len(self._held))
        columns = rank * len(self._outputs)
        with torch.inference_mode(mode=False):  # So that it can be filled outside of that mode, too.
            a_PKR = self._a_PKR.new_zeros(more, self._inputs, columns)
            b_PRN = self._b_PRN.new_zeros(more, columns, sum(self._outputs))
        if rank == self._rank:
            a_PKR[: len(self._held)], b_PRN[: len(self._held)] = self._a_PKR, self._b_PRN
        self._a_PKR, self._b_PRN, self._rank = a_PKR, b_PRN, rank
        self._held += [None] * (more - len(self._held))

    def _fill(self, place: int, terms: Terms) -> None:
        a_KR, b_RN = self._a_PKR[place].zero_(), self._b_PRN[place].zero_()
        output = 0
        for member, (width, term) in enumerate(zip(self._outputs, terms, strict=False)):
            if term is not None:
                columns = slice(member * self._rank, member * self._rank + len(term.a_RK))
                a_KR[:, columns] = term.a_RK.T
                b_RN[columns, output : output + width] = term.b_NR.T.to(b_RN.dtype) * term.scale
            output += width
        self._held[place] = terms
