"""Adapters in numbered slots of one model. Loading a slot copies tensors; modules are never replaced.

Knows the model's modules and tensors; not where adapters come from nor how they are trained.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workers.lora.adapter import AdapterWeights
from workers.models.language_model import LanguageModel
from workers.models.layers.factor_stack import LowRank
from workers.models.layers.linear import AdaptedLinear
from workers.models.layers.places import MAX_RANK
from workers.models.weight import Weight


@dataclass(frozen=True)
class _Slot:
    adapter: AdapterWeights
    parameters: dict[str, nn.Parameter]


class AdapterBank:
    """Slots hold trainable masters (float32, or float64 in a float64 model) or served copies in the model's dtype.

    `heard` are the kinds of parameters that are known to change this model's logits; who has found out says so there.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._modules = model.adaptable()
        self._weights = model.weights()
        self._device, self._dtype = model.device, model.dtype
        self._trained: dict[int, _Slot] = {}
        self.heard: set[str] = set()

    def load(self, slot: int, adapter: AdapterWeights, trainable: bool = False) -> None:
        """Copy an adapter into a slot, in place of what was there.

        Raises ValueError naming the module or tensor when one is unknown, does not fit, or overflows the model's dtype.
        """
        if slot < 0:
            raise ValueError(f"slot {slot} is not a place for an adapter; -1 means the base alone")
        terms = {n: self._term(n, f, adapter.scales[n], trainable) for n, f in adapter.tensors.items()}
        deltas, owns = self._dense(adapter.dense, wide=True), self._dense(adapter.own, wide=trainable)
        self.clear(slot)
        parameters: dict[str, nn.Parameter] = {}

        def placed(name: str, tensor: Tensor) -> Tensor:
            if not trainable:
                return tensor
            parameters[name] = nn.Parameter(tensor)
            return parameters[name]

        for name, (a_RK, b_NR, scale) in terms.items():
            a_leaf, b_leaf = placed(f"{name}.lora_A", a_RK), placed(f"{name}.lora_B", b_NR)
            self._modules[name].attach(slot, LowRank(a_leaf, b_leaf, scale))
        for name, tensor in deltas.items():
            weight = self._weights[name]
            if trainable:
                weight.delta[slot] = placed(f"{name}.delta", tensor)
            else:
                # What is served is added up once, not for each token.
                weight.own[slot] = (weight.base + tensor).to(weight.dtype)
        for name, tensor in owns.items():
            self._weights[name].own[slot] = placed(f"{name}.own", tensor)
        if deltas or owns:
            self._model.dense_slots.add(slot)
        if trainable:
            self._trained[slot] = _Slot(adapter, parameters)
        if trainable or not _stacked(adapter):
            self._model.places.apart.add(slot)

    def served_bytes(self, adapter: AdapterWeights) -> int:
        """Return how many bytes an adapter takes in a slot that serves it, its place in the stacks among them."""
        factors = sum(a_RK.numel() + b_NR.numel() for a_RK, b_NR in adapter.tensors.values())
        stacked = 0
        if _stacked(adapter):
            held = [(self._modules.get(name), len(a_RK)) for name, (a_RK, _) in adapter.tensors.items()]
            stacked = sum(m.stacked_bytes(rank) for m, rank in held if isinstance(m, AdaptedLinear))
        dense = [(name, tensor) for held in (adapter.dense, adapter.own) for name, tensor in held.items()]
        widths = {name: weight.dtype.itemsize for name, weight in self._weights.items()}
        width = self._dtype.itemsize
        return stacked + factors * width + sum(tensor.numel() * widths.get(name, width) for name, tensor in dense)

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        self._trained.pop(slot, None)
        self._model.dense_slots.discard(slot)
        self._model.places.apart.discard(slot)
        for module in self._modules.values():
            module.detach(slot)
        for weight in self._weights.values():
            weight.forget(slot)

    def parameters(self, slot: int) -> dict[str, nn.Parameter]:
        """Return the trainable leaves of a slot. Raises KeyError.

        They are named `<module>.lora_A`, `<module>.lora_B`, `<tensor>.delta` and `<tensor>.own`.
        """
        return self._trained[slot].parameters

    def weights(self, slot: int) -> AdapterWeights:
        """Return float32 copies of a trainable slot's present weights. Raises KeyError."""
        adapter, parameters = self._trained[slot].adapter, self._trained[slot].parameters

        def copy(name: str) -> Tensor:
            return parameters[name].detach().to("cpu", torch.float32, copy=True)

        return AdapterWeights(
            tensors={name: (copy(f"{name}.lora_A"), copy(f"{name}.lora_B")) for name in adapter.tensors},
            scales=dict(adapter.scales),
            alpha=adapter.alpha,
            rank=adapter.rank,
            targets=list(adapter.targets),
            dense={name: copy(f"{name}.delta") for name in adapter.dense},
            own={name: copy(f"{name}.own") for name in adapter.own},
        )

    def _term(self, name: str, factors: tuple[Tensor, Tensor], scale: float, trainable: bool) -> LowRank:
        if name not in self._modules:
            raise ValueError(f"{name}: the base model has no such module")
        dtype = torch.promote_types(self._dtype, torch.float32) if trainable else self._dtype
        a_RK, b_NR = (factor.detach().to(self._device, dtype, copy=True) for factor in factors)
        # Rows of other slots are masked by zeros; zero times infinity would reach them.
        if not (a_RK.isfinite().all() and (b_NR * scale).to(self._dtype).isfinite().all()):
            raise ValueError(f"{name}: a value is not finite in {self._dtype}")
        return LowRank(a_RK, b_NR, scale)

    def _dense(self, tensors: Mapping[str, Tensor], *, wide: bool) -> dict[str, Tensor]:
        return {name: self._place(name, tensor, wide) for name, tensor in tensors.items()}

    def _place(self, name: str, tensor: Tensor, wide: bool) -> Tensor:
        weight: Weight | None = self._weights.get(name)
        if weight is None:
            raise ValueError(f"{name}: the base model has no such tensor")
        if weight.shape != tensor.shape:
            raise ValueError(f"{name}: shape {tuple(tensor.shape)} is not {tuple(weight.shape)}")
        dtype = torch.promote_types(weight.dtype, torch.float32) if wide else weight.dtype
        placed = tensor.detach().to(self._device, dtype, copy=True)
        if not placed.to(weight.dtype).isfinite().all():
            raise ValueError(f"{name}: a value is not finite in {weight.dtype}")
        return placed


def _stacked(adapter: AdapterWeights) -> bool:
    """Whether an adapter that is served may have a place in the stacks."""
    return all(len(a_RK) <= MAX_RANK for a_RK, _ in adapter.tensors.values())
