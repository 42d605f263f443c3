"""Adapters as PEFT files: a configuration and safetensors bytes. Knows the format and torch; not where bytes live."""

from collections.abc import Mapping

import torch
from safetensors.torch import load, save

from app.contracts.adapter_format import PREFIX, AdapterFormatError, peft_config, plan_adapter, tensor_shapes
from app.contracts.base_models import ModuleShape
from workers.lora.adapter import AdapterWeights


def to_peft(adapter: AdapterWeights, base_model: str) -> tuple[dict[str, object], bytes]:
    """Return `adapter_config.json` as a dict and `adapter_model.safetensors`; equal adapters give equal bytes."""
    tensors = {}
    for name, (a_RK, b_NR) in sorted(adapter.tensors.items()):
        tensors[f"{PREFIX}{name}.lora_A.weight"] = a_RK.contiguous()
        tensors[f"{PREFIX}{name}.lora_B.weight"] = b_NR.contiguous()
    config = peft_config(
        base_model=base_model,
        rank=adapter.rank,
        alpha=adapter.alpha,
        targets=adapter.targets,
        ranks={name: len(a_RK) for name, (a_RK, _) in adapter.tensors.items()},
        scales=adapter.scales,
    )
    return config, save(tensors, metadata={"format": "pt"})


def _targets(names: list[str], modules: Mapping[str, ModuleShape]) -> list[str]:
    """Return last name parts if they stand for exactly these modules, else the full names."""
    suffixes = sorted({name.rpartition(".")[2] for name in names})
    covered = [name for name in modules if name.rpartition(".")[2] in suffixes]
    return suffixes if len(covered) == len(names) else sorted(names)


def from_peft(config: Mapping[str, object], data: bytes, modules: Mapping[str, ModuleShape]) -> AdapterWeights:
    """Return the adapter in float32. Raises AdapterFormatError naming the field, tensor or module at fault."""
    plan = plan_adapter(config, tensor_shapes(data), modules)
    loaded = load(data)
    tensors = {}
    for name, module in plan.items():
        factors = loaded[module.a_key].to(torch.float32), loaded[module.b_key].to(torch.float32)
        for key, factor in zip((module.a_key, module.b_key), factors, strict=True):
            if not factor.isfinite().all():
                raise AdapterFormatError(f"tensor {key} holds a value that is not finite in float32", key)
        tensors[name] = factors
    return AdapterWeights(
        tensors=tensors,
        scales={name: module.scale for name, module in plan.items()},
        alpha=float(str(config["lora_alpha"])),
        rank=int(str(config["r"])),
        targets=_targets(list(plan), modules),
    )
