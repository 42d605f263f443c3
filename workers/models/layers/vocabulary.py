"""Token embedding and head: lookup at the bottom, logits at the top, tied or not, each with its adapter seam.

The embedding is a module like a linear one: its low-rank term B A has a row of B for each token. Where the head is tied
to it, the term counts there too. Knows slots as numbers; nothing of who fills them.

Legend: T rows, D width, V vocabulary, R rank.
"""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import embedding

from workers.kernels.linear_cross_entropy import linear_cross_entropy
from workers.kernels.lora_linear import frozen_linear
from workers.kernels.packed_weight import can_pack, pack_weight
from workers.models.config import ModelConfig
from workers.models.layers.context import BatchContext
from workers.models.layers.factor_stack import LowRank
from workers.models.layers.linear import check_term
from workers.models.weight import Weight, new_weight


class Vocabulary:
    """The embedding, an adaptable module under its own `name`, and the head."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.vocab_size, config.hidden_size)
        self.name = config.embedding
        self.out_features, self.in_features = shape
        self.weight = new_weight(f"{config.embedding}.weight", shape, device, dtype)
        self.tied = config.tied_head
        self.head = self.weight if self.tied else new_weight(f"{config.head}.weight", shape, device, dtype)
        self.multiplier, self.divisor = config.embedding_multiplier, config.logits_divisor
        self.delta: dict[int, LowRank] = {}
        self._packed_head: Tensor | None = None

    def weights(self) -> list[Weight]:
        """Return the embedding and, where it is a matrix of its own, the head."""
        return [self.weight] if self.tied else [self.weight, self.head]

    def freeze(self) -> None:
        """Declare the weights final, so that a packed copy of the head can be made."""
        if can_pack(self.head.base):
            self._packed_head = pack_weight(self.head.base)

    def attach(self, slot: int, term: LowRank) -> None:
        """Give `slot` a low-rank term. Raises ValueError when the shapes do not fit."""
        check_term(self.name, term, self.out_features, self.in_features)
        self.delta[slot] = term

    def detach(self, slot: int) -> None:
        """Remove the term of `slot`, if any."""
        self.delta.pop(slot, None)

    def lookup(self, token_ids_T: Tensor, context: BatchContext) -> Tensor:
        """Return the rows of the tokens [T, D]."""
        x_TD = context.by_part([self.weight], token_ids_T, lambda ids_T, slot: embedding(ids_T, self.weight.of(slot)))
        if any(segment.slot in self.delta for segment in context.segments):
            parts = [self._adapted(x_TD[s.rows], token_ids_T[s.rows], s.slot) for s in context.segments]
            x_TD = torch.cat(parts)
        return x_TD if self.multiplier == 1 else x_TD * self.multiplier

    def _adapted(self, x_TD: Tensor, token_ids_T: Tensor, slot: int) -> Tensor:
        term = self.delta.get(slot)
        if term is None:
            return x_TD
        return x_TD + (embedding(token_ids_T, term.b_NR) @ term.a_RK * term.scale).to(x_TD.dtype)

    def logits(self, hidden_TD: Tensor, slots: Sequence[int] = ()) -> Tensor:
        """Return logits [T, V] in float32 (float64 for a float64 model); `slots` are the rows' (none: the base)."""
        changed = {slot for slot in slots if self._changed_by(slot)}
        if not changed:
            return self._of_slot(hidden_TD, -1)
        result_TV = hidden_TD.new_empty(
            len(hidden_TD), self.out_features, dtype=torch.promote_types(hidden_TD.dtype, torch.float32)
        )
        whose = [slot if slot in changed else -1 for slot in slots]
        for slot in set(whose):
            rows = torch.tensor([i for i, s in enumerate(whose) if s == slot], device=hidden_TD.device)
            result_TV[rows] = self._of_slot(hidden_TD[rows], slot)
        return result_TV

    def nll(self, hidden_TD: Tensor, targets_T: Tensor, slots: Sequence[int]) -> Tensor:
        """Return −log p(target) of each row [T] in float32, without holding all logits; `slots` are the rows'."""
        hidden_TD = self._scaled(hidden_TD)
        parts, start = [], 0
        for slot, group in groupby(slot if self._changed_by(slot) else -1 for slot in slots):
            rows = slice(start, start + sum(1 for _ in group))
            parts.append(self._nll(hidden_TD[rows], targets_T[rows], slot))
            start = rows.stop
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _nll(self, hidden_TD: Tensor, targets_T: Tensor, slot: int) -> Tensor:
        low_rank = None
        if self.tied and slot in self.delta:
            term = self.delta[slot]
            low_TR = hidden_TD @ (term.a_RK * term.scale).to(hidden_TD.dtype).T
            low_rank = low_TR, term.b_NR.to(hidden_TD.dtype)
        packed = None if self.head.changed_by(slot) else self._packed_head
        return linear_cross_entropy(hidden_TD, self.head.of(slot), targets_T, packed, low_rank)

    def _changed_by(self, slot: int) -> bool:
        return self.head.changed_by(slot) or (self.tied and slot in self.delta)

    def _scaled(self, hidden_TD: Tensor) -> Tensor:
        return hidden_TD if self.divisor == 1 else hidden_TD / self.divisor

    def _of_slot(self, hidden_TD: Tensor, slot: int) -> Tensor:
        hidden_TD = self._scaled(hidden_TD)
        packed = None if self.head.changed_by(slot) else self._packed_head
        logits_TV = frozen_linear(hidden_TD, self.head.of(slot), packed)
        if self.tied and slot in self.delta:
            term = self.delta[slot]
            low_TR = hidden_TD @ (term.a_RK * term.scale).to(hidden_TD.dtype).T
            logits_TV = logits_TV + low_TR @ term.b_NR.to(hidden_TD.dtype).T
        return logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))
