"""What a job's configuration means for each optimizer step. Knows the model's norms and the adapter's names."""

from dataclasses import dataclass

import torch
from torch import Tensor

from app.contracts.training import JobConfig
from workers.lora.adapter import AdapterWeights
from workers.models.language_model import LanguageModel
from workers.training.adamw import AdamWConfig, Bound, Exchange
from workers.training.relative_bound import Product, RelativeBound
from workers.training.sharding import Shard, ShardGroup


@dataclass(frozen=True)
class Optimizer:
    """The arguments of `adamw_step` that stay the same for a whole run."""

    config: AdamWConfig
    bound: Bound | None
    exchange: Exchange | None


def optimizer_of(
    config: JobConfig, model: LanguageModel, adapter: AdapterWeights, group: ShardGroup | None
) -> Optimizer:
    """Return the optimizer of a run on `adapter`; in a `group` each trainer steps its part and all get every weight."""
    training, region = config.training, config.trust_region
    adamw = AdamWConfig(
        training.beta1,
        training.beta2,
        training.eps,
        training.weight_decay,
        training.max_grad_norm,
        region.max_delta,
    )
    shard = Shard(training.shard.index, training.shard.count) if training.shard else None
    share = region.max_relative_update
    bound = None if share is None else relative_bound(share, model, adapter)
    return Optimizer(adamw, bound, group or shard)


def relative_bound(share: float, model: LanguageModel, adapter: AdapterWeights) -> RelativeBound:
    """Return the bound of every module and tensor that `adapter` trains, by the norms of the base's weights."""
    modules, weights = model.adaptable(), model.weights()
    products = [
        Product(f"{name}.lora_A", f"{name}.lora_B", adapter.scales[name], _norm(modules[name].weight.base))
        for name in adapter.tensors
    ]
    norms = {f"{name}.delta": _norm(weights[name].base) for name in adapter.dense}
    norms |= {f"{name}.own": _norm(weights[name].base) for name in adapter.own}
    return RelativeBound(share, products, norms)


def _norm(weight: Tensor) -> float:
    return float(torch.linalg.vector_norm(weight.to(torch.promote_types(weight.dtype, torch.float32))))
