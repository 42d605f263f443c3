"""What a run starts from when it continues nothing: weights that compute exactly what the base computes.

Knows the base model and a job's mode; nothing of slots or training.
"""

from dataclasses import replace

import torch

from app.contracts.base_models import BaseModelInfo
from app.contracts.targets import plan_targets, selective_shapes
from app.contracts.training import LoRAConfig
from workers.lora.adapter import AdapterWeights, init_modules
from workers.models.language_model import LanguageModel


def new_lora(info: BaseModelInfo, config: LoRAConfig) -> AdapterWeights:
    """Return low-rank factors with B = 0 for modules and the embedding, zero deltas for dense targets.

    Raises UnknownTargetError.
    """
    plan = plan_targets(info, config.targets)
    dense = {name: torch.zeros(shape) for name, shape in plan.tensors.items()}
    return replace(init_modules(plan.modules, config), dense=dense)


def new_wsla(info: BaseModelInfo) -> AdapterWeights:
    """Return zero deltas of the selective projection of every state-space layer."""
    dense = {name: torch.zeros(shape) for name, shape in selective_shapes(info).items()}
    return AdapterWeights({}, {}, alpha=1.0, rank=1, targets=[], dense=dense)


def new_full(model: LanguageModel) -> AdapterWeights:
    """Return a copy of every weight of the base, in float32 on the CPU."""
    own = {name: weight.base.detach().to("cpu", torch.float32, copy=True) for name, weight in model.weights().items()}
    return AdapterWeights({}, {}, alpha=1.0, rank=1, targets=[], own=own)
