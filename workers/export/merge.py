"""Folds an adapter into its base: whole tensors under their own names. Knows no file format.

Legend: N outputs, K inputs, R rank.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from workers.lora.adapter import AdapterWeights
from workers.models.language_model import LanguageModel


def merged_weights(model: LanguageModel, adapter: AdapterWeights) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of the merged model on the CPU, in the base tensor's dtype.

    A tensor of the adapter's own stands in the base's place; to it come the dense delta and scale · B A, in float32 or
    wider. Names of the adapter that the model does not have are an error of the caller's, who checked them.
    """
    for name, weight in model.weights().items():
        base = weight.base
        wide = torch.promote_types(weight.dtype, torch.float32)
        merged = adapter.own.get(name, base).detach().to("cpu", wide, copy=True)
        if name in adapter.dense:
            merged += adapter.dense[name].to(wide)
        module = name.removesuffix(".weight")
        if module in adapter.tensors and module != name:
            a_RK, b_NR = (factor.to(wide) for factor in adapter.tensors[module])
            merged += adapter.scales[module] * (b_NR @ a_RK)
        yield name, merged.to(weight.dtype).contiguous()
