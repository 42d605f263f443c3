"""One optimizer step shared among trainers of the same parameters, as in ZeRO stage 1 (Rajbhandari et al. 2020).

Each of `count` trainers steps the parameters at the positions i % count == index of the trained set and holds moments
for those alone. A bare `Shard` knows nothing of the others: the union of their steps is one unsharded step. A
`ShardGroup` is the same over torch.distributed: gradients are summed, and every trainer ends with all new weights.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from workers.training.adamw import Moments, Proposal


@dataclass(frozen=True)
class Shard:
    """Owns every `count`-th parameter from `index` on. An `Exchange` that gathers nothing."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"shard {self.index} is none of 0 to {self.count - 1}")

    def owned(self, names: Iterable[str]) -> frozenset[str]:
        """Return the parameters stepped here; positions are those in `names`."""
        return frozenset(name for i, name in enumerate(names) if i % self.count == self.index)

    def gather(
        self,
        parameters: Mapping[str, Tensor],  # noqa: ARG002 (an Exchange)
        stepped: Collection[str],  # noqa: ARG002
        proposal: Proposal,
    ) -> Proposal:
        """Return the proposal as it is."""
        return proposal


class ShardGroup:
    """The trainers of a process group, one shard each; all of them must take every step together."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group, self._device = group, device
        self.shard = Shard(dist.get_rank(group), dist.get_world_size(group))

    def owned(self, names: Iterable[str]) -> frozenset[str]:
        """Return the parameters stepped here."""
        return self.shard.owned(names)

    def total(self, value: float) -> float:
        """Return the sum of what each trainer gives."""
        told = torch.tensor(value, dtype=torch.float64, device=self._device)
        dist.all_reduce(told, group=self._group)
        return float(told)

    def sum_gradients(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums of what each trainer computed on its part of the step's data.

        A parameter has a gradient if it has one in any trainer.
        """
        present = torch.tensor([name in gradients for name in parameters], dtype=torch.int64, device=self._device)
        dist.all_reduce(present, group=self._group)
        names = [name for name, count in zip(parameters, present.tolist(), strict=True) if count]
        if not names:
            return {}
        mine = [gradients.get(name, torch.zeros_like(parameters[name])).reshape(-1) for name in names]
        flat = torch.cat(mine)
        dist.all_reduce(flat, group=self._group)
        parts = flat.split([part.numel() for part in mine])
        return {name: part.view(parameters[name].shape) for name, part in zip(names, parts, strict=True)}

    def gather(self, parameters: Mapping[str, Tensor], stepped: Collection[str], proposal: Proposal) -> Proposal:
        """Return everybody's new weights with the moments kept here; not finite if anyone's step is not."""
        told = torch.tensor([0 if proposal.finite else 1, proposal.clamped], dtype=torch.int64, device=self._device)
        dist.all_reduce(told, group=self._group)
        refused, clamped = told.tolist()
        if refused:
            return Proposal({}, {}, 0, finite=False)
        weights: dict[str, Tensor] = {}
        for owner in range(self.shard.count):
            theirs = Shard(owner, self.shard.count).owned(parameters)
            held = {name: parameters[name].detach() for name in stepped if name in theirs}
            weights |= self._broadcast(owner, held | proposal.weights if owner == self.shard.index else held)
        return Proposal({name: weights[name] for name in stepped}, proposal.moments, clamped, finite=True)

    def _broadcast(self, owner: int, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Send what trainer `owner` proposes or, in any other, receive it; `held` has the right names and shapes."""
        if not held:
            return {}
        flat = torch.cat([weight.reshape(-1) for weight in held.values()])
        dist.broadcast(flat, dist.get_global_rank(self._group, owner), group=self._group)
        parts = flat.split([weight.numel() for weight in held.values()])
        return {name: part.view(held[name].shape) for name, part in zip(held, parts, strict=True)}


def optimizer_bytes(moments: Mapping[str, Moments]) -> int:
    """Return what the moments held here take in memory."""
    return sum(held.m.nbytes + held.v.nbytes for held in moments.values())
