"""The adapter file format: `adapter_config.json` and `adapter_model.safetensors`, PEFT's as far as PEFT goes.

PEFT's layout holds LoRA on linear modules and on the embedding; dense deltas stand beside it under our own prefix, and
own weights (mode `full`) are a complete checkpoint under the base's tensor names.

Shared by upload validation and by workers, so that what the service accepts is what a worker can load. Knows names,
shapes and numbers; no torch, no storage. What would change the result and is not supported is refused by name.
"""

from app.contracts.adapter_format.errors import AdapterFormatError
from app.contracts.adapter_format.names import (
    DELTA_PREFIX,
    PREFIX,
    embedding_keys,
    linear_keys,
    targets_of,
    trainable_scalars,
    twin_keys,
)
from app.contracts.adapter_format.peft_config import MAX_RANK, read_graft
from app.contracts.adapter_format.plan import AdapterPlan, ModulePlan, plan_adapter
from app.contracts.adapter_format.writing import graft_part, own_config, peft_config

__all__ = [
    "DELTA_PREFIX",
    "MAX_RANK",
    "PREFIX",
    "AdapterFormatError",
    "AdapterPlan",
    "ModulePlan",
    "embedding_keys",
    "graft_part",
    "linear_keys",
    "own_config",
    "peft_config",
    "plan_adapter",
    "read_graft",
    "targets_of",
    "trainable_scalars",
    "twin_keys",
]
