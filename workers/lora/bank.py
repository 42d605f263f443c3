"""Adapters in numbered slots of one model. Loading a slot copies tensors; modules are never replaced.

Knows the model's linear modules; not where adapters come from nor how they are trained.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workers.lora.adapter import AdapterWeights
from workers.models.language_model import LanguageModel
from workers.models.layers.linear import LowRank


@dataclass(frozen=True)
class _Slot:
    adapter: AdapterWeights
    parameters: dict[str, nn.Parameter]


class AdapterBank:
    """Slots hold trainable masters (float32, or float64 in a float64 model) or served copies in the model's dtype."""

    def __init__(self, model: LanguageModel) -> None:
        self._linears = model.linears()
        self._device, self._dtype = model.device, model.dtype
        self._trained: dict[int, _Slot] = {}

    def load(self, slot: int, adapter: AdapterWeights, trainable: bool = False) -> None:
        """Copy an adapter into a slot, in place of what was there.

        Raises ValueError naming the module when one is unknown, does not fit, or overflows the model's dtype.
        """
        if slot < 0:
            raise ValueError(f"slot {slot} is not a place for an adapter; -1 means the base alone")
        dtype = torch.promote_types(self._dtype, torch.float32) if trainable else self._dtype
        terms = {
            name: self._term(name, factors, adapter.scales[name], dtype) for name, factors in adapter.tensors.items()
        }
        self.clear(slot)
        parameters: dict[str, nn.Parameter] = {}
        for name, (a_RK, b_NR, scale) in terms.items():
            if trainable:
                parameters[f"{name}.lora_A"] = a_leaf = nn.Parameter(a_RK)
                parameters[f"{name}.lora_B"] = b_leaf = nn.Parameter(b_NR)
                self._linears[name].attach(slot, LowRank(a_leaf, b_leaf, scale))
            else:
                self._linears[name].attach(slot, LowRank(a_RK, b_NR, scale))
        if trainable:
            self._trained[slot] = _Slot(adapter, parameters)

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        self._trained.pop(slot, None)
        for module in self._linears.values():
            module.detach(slot)

    def parameters(self, slot: int) -> dict[str, nn.Parameter]:
        """Return the trainable leaves of a slot by `<module>.lora_A` and `<module>.lora_B`. Raises KeyError."""
        return self._trained[slot].parameters

    def weights(self, slot: int) -> AdapterWeights:
        """Return float32 copies of a trainable slot's present weights. Raises KeyError."""
        adapter, parameters = self._trained[slot].adapter, self._trained[slot].parameters

        def copy(name: str) -> Tensor:
            return parameters[name].detach().to("cpu", torch.float32, copy=True)

        tensors = {name: (copy(f"{name}.lora_A"), copy(f"{name}.lora_B")) for name in adapter.tensors}
        return AdapterWeights(tensors, dict(adapter.scales), adapter.alpha, adapter.rank, list(adapter.targets))

    def _term(self, name: str, factors: tuple[Tensor, Tensor], scale: float, dtype: torch.dtype) -> LowRank:
        if name not in self._linears:
            raise ValueError(f"{name}: the base model has no such module")
        a_RK, b_NR = (factor.detach().to(self._device, dtype, copy=True) for factor in factors)
        # Rows of other slots are masked by zeros; zero times infinity would reach them.
        if not (a_RK.isfinite().all() and (b_NR * scale).to(self._dtype).isfinite().all()):
            raise ValueError(f"{name}: a value is not finite in {self._dtype}")
        return LowRank(a_RK, b_NR, scale)
