"""Low-rank factors of many slots, stacked by place: batched products add the terms of all their rows. No autograd.

Factors of a mixed batch are zero-padded to one rank. A place is filled when its slot is first used there and again when
the slot's factors have been exchanged. On a CPU the stack is float32 whatever the model's dtype: at one row a place
it multiplies small float32 matrices several times faster than bfloat16 ones. Each place's rows are a product of their
own, so a value that is not finite stays with its slot.

Neighbouring members of one width are a family: one product for the B of all of them.

Legend: T rows, K inputs, P places, M rows of a place, R a rank, E ranks of all members side by side, F members of a
family, N outputs of one of them, Q = P · F.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
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


class _Family(NamedTuple):
    """Neighbouring members of one width, and where their ranks' columns and their outputs lie among all members'."""

    members: range
    outputs: slice
    width: int

    def of(self, h_PME: Tensor, rank: int) -> Tensor:
        """Return its members' columns as matrices of their own [Q, M, R]."""
        columns = slice(self.members.start * rank, self.members.stop * rank)
        h_QMR: Tensor = h_PME[:, :, columns].unflatten(2, (-1, rank)).transpose(1, 2).flatten(0, 1)
        return h_QMR

    def side_by_side(self, z_QMN: Tensor) -> Tensor:
        """Return its members' outputs [P · M, F · N]."""
        z_XN: Tensor = z_QMN.unflatten(0, (-1, len(self.members))).transpose(1, 2).flatten(2).flatten(0, 1)
        return z_XN


def _families(widths: Sequence[int]) -> list[_Family]:
    found, member, output = [], 0, 0
    for width, same in groupby(widths):
        count = len(list(same))
        found.append(_Family(range(member, member + count), slice(output, output + count * width), width))
        member, output = member + count, output + count * width
    return found


class FactorStack:
    """The stack of one group of modules that share an input; `outputs` are the members' widths."""

    def __init__(self, outputs: Sequence[int], in_features: int, like: Tensor) -> None:
        self._count, self._inputs = len(outputs), in_features
        self._families = _families(outputs)
        self._of_member = [(f, m) for f, family in enumerate(self._families) for m in range(len(family.members))]
        dtype = torch.promote_types(like.dtype, torch.float32) if like.device.type == "cpu" else like.dtype
        self._rank = 0
        self._a_PKE = torch.empty(0, in_features, 0, device=like.device, dtype=dtype)
        self._b_PFRN = [self._a_PKE.new_empty(0, len(f.members), 0, f.width) for f in self._families]
        self._held: list[Terms | None] = []
        """What each place is filled with; None: nobody's or a former slot's, to be overwritten before it is used."""

    def add(self, y_TN: Tensor, x_TK: Tensor, rows: StackedRows, terms: dict[int, Terms]) -> None:
        """Add the terms of the rows' slots to y in place."""
        present = [terms.get(slot, ()) for _, slot in rows.places]
        if not any(present):
            return
        self._hold(rows, present)
        x_TK = x_TK.to(self._a_PKE.dtype)
        exchange = rows.exchange
        if exchange is None:
            for (place, _), span, held in zip(rows.places, rows.spans, present, strict=True):
                if held:
                    for family, z_MN in self._terms(x_TK[None, span], slice(place, place + 1)):
                        y_TN[span, family.outputs].add_(z_MN)
            return
        x_XK = x_TK[exchange.spans[0]] if exchange.gather_PM is None else x_TK.index_select(0, exchange.gather_PM)
        for family, z_XN in self._terms(x_XK.view(exchange.count, -1, self._inputs), slice(exchange.count)):
            z_RN = z_XN if exchange.back_R is None else z_XN.index_select(0, exchange.back_R)
            first = 0
            for span in exchange.spans:
                y_TN[span, family.outputs].add_(z_RN[first : first + span.stop - span.start])
                first += span.stop - span.start

    def bytes_of(self, rank: int, width: int) -> int:
        """Return what a place of one member of this width takes."""
        return rank * (self._inputs + width) * self._a_PKE.element_size()

    def forget(self, terms: Terms | None) -> None:
        """Let go of a slot's terms."""
        self._held = [None if held is terms else held for held in self._held]

    def _terms(self, x_PMK: Tensor, places: slice) -> Iterator[tuple[_Family, Tensor]]:
        """Yield each family and the terms of its members side by side [P · M, F · N]."""
        h_PME = torch.bmm(x_PMK, self._a_PKE[places])
        for family, b_PFRN in zip(self._families, self._b_PFRN, strict=True):
            z_QMN = torch.bmm(family.of(h_PME, self._rank), b_PFRN[places].flatten(0, 1))
            yield family, family.side_by_side(z_QMN)

    def _hold(self, rows: StackedRows, present: Sequence[Terms]) -> None:
        """Fill the places of these rows, where they are not filled yet."""
        count = max(place for place, _ in rows.places) + 1 if rows.exchange is None else rows.exchange.count
        if count <= len(self._held):
            news = [terms for (p, _), terms in zip(rows.places, present, strict=True) if self._held[p] is not terms]
            if not news:
                return
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
        kept, more = len(self._held), max(places, len(self._held))
        with torch.inference_mode(mode=False):  # So that it can be filled outside of that mode, too.
            a_PKE = self._a_PKE.new_zeros(more, self._inputs, rank * self._count)
            b_PFRN = [b.new_zeros(more, b.shape[1], rank, b.shape[3]) for b in self._b_PFRN]
        if rank == self._rank:
            a_PKE[:kept] = self._a_PKE
            for new, old in zip(b_PFRN, self._b_PFRN, strict=True):
                new[:kept] = old
        self._a_PKE, self._b_PFRN, self._rank = a_PKE, b_PFRN, rank
        self._held += [None] * (more - kept)

    def _fill(self, place: int, terms: Terms) -> None:
        a_KE = self._a_PKE[place].zero_()
        for b_PFRN in self._b_PFRN:
            b_PFRN[place].zero_()
        for number, (term, (family, member)) in enumerate(zip(terms, self._of_member, strict=False)):
            if term is not None:
                rank = len(term.a_RK)
                a_KE[:, number * self._rank :][:, :rank] = term.a_RK.T
                b_RN = self._b_PFRN[family][place, member]
                b_RN[:rank] = term.b_NR.T.to(b_RN.dtype) * term.scale
        self._held[place] = terms
