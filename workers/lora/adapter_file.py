"""Adapters as files: a configuration and safetensors bytes. Knows the format and torch; not where bytes live.

Legend: R rank, K inputs, N outputs, V vocabulary, D width.
"""

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from app.contracts.adapter_format import (
    DELTA_PREFIX,
    AdapterFormatError,
    AdapterPlan,
    embedding_keys,
    graft_part,
    linear_keys,
    own_config,
    peft_config,
    plan_adapter,
    twin_keys,
)
from app.contracts.base_models import BaseModelInfo
from app.contracts.targets import EMBEDDINGS, tensor_target
from app.contracts.training import Mode
from workers.lora.adapter import AdapterWeights

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def to_peft(adapter: AdapterWeights, info: BaseModelInfo) -> tuple[dict[str, object], bytes]:
    """Return `adapter_config.json` as a dict and `adapter_model.safetensors`; equal adapters give equal bytes."""
    tensors = _low_rank_tensors(adapter, info)
    tensors |= {DELTA_PREFIX + name: tensor for name, tensor in adapter.dense.items()}
    tensors |= adapter.own
    config = own_config(info, rank=adapter.rank, alpha=adapter.alpha)
    if adapter.tensors:
        config = peft_config(
            info,
            rank=adapter.rank,
            alpha=adapter.alpha,
            targets=adapter.targets,
            ranks={name: len(a_RK) for name, (a_RK, _) in adapter.tensors.items()},
            scales=adapter.scales,
        )
    if adapter.own or adapter.dense:
        config |= graft_part(_mode(adapter))
    ordered = {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}
    return config, save(ordered, metadata={"format": "pt"})


def from_peft(config: Mapping[str, object], data: bytes, info: BaseModelInfo) -> AdapterWeights:
    """Return the adapter in float32. Raises AdapterFormatError naming the field, tensor or module at fault."""
    try:
        loaded = load(data)
    except SafetensorError as error:
        raise AdapterFormatError(f"not a safetensors file: {error}") from error
    tensors = {key: _float32(key, tensor) for key, tensor in loaded.items()}
    plan = plan_adapter(config, {key: tuple(tensor.shape) for key, tensor in tensors.items()}, info)
    for key, other in plan.twins.items():
        if not torch.equal(tensors[key], tensors[other].T):
            raise AdapterFormatError(f"tensor {key} is not the transpose of {other}, with which it is tied", key)
    factors = {}
    for name, module in plan.modules.items():
        a_RK, b_NR = tensors[module.a_key], tensors[module.b_key]
        factors[name] = (a_RK.T.contiguous(), b_NR.T.contiguous()) if module.transposed else (a_RK, b_NR)
    return AdapterWeights(
        tensors=factors,
        scales={name: module.scale for name, module in plan.modules.items()},
        alpha=float(str(config.get("lora_alpha", 1.0))),
        rank=int(str(config.get("r", 1))),
        targets=_targets(plan, info) if plan.mode == "lora" else [],
        dense={name: tensors[key] for name, key in plan.dense.items()},
        own={name: tensors[name] for name in plan.own},
    )


def _mode(adapter: AdapterWeights) -> Mode:
    if adapter.own:
        return "full"
    return "lora" if adapter.targets else "wsla"


def _low_rank_tensors(adapter: AdapterWeights, info: BaseModelInfo) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, (a_RK, b_NR) in adapter.tensors.items():
        if name != info.embedding:
            a_key, b_key = linear_keys(name)
            tensors |= {a_key: a_RK, b_key: b_NR}
            continue
        of_b, of_a = embedding_keys(name)
        tensors |= {of_b: b_NR.T, of_a: a_RK.T}
        tensors |= {key: tensors[other].T for key, other in twin_keys(info).items()}
    return tensors


def _float32(key: str, tensor: Tensor) -> Tensor:
    if tensor.dtype not in _DTYPES:
        raise AdapterFormatError(f"tensor {key} has type {tensor.dtype}, expected floating point", key)
    narrow = tensor.to(torch.float32)
    if not narrow.isfinite().all():
        raise AdapterFormatError(f"tensor {key} holds a value that is not finite in float32", key)
    return narrow


def _targets(plan: AdapterPlan, info: BaseModelInfo) -> list[str]:
    """Return targets that stand for exactly what the file adapts; where none do, the modules' full names."""
    linears = sorted(plan.modules.keys() - {info.embedding})
    suffixes = sorted({name.rpartition(".")[2] for name in linears})
    covered = [name for name in info.modules if name.rpartition(".")[2] in suffixes]
    others = {EMBEDDINGS} if info.embedding in plan.modules else set()
    others |= {tensor_target(name) for name in plan.dense}
    return [*(suffixes if len(covered) == len(linears) else linears), *sorted(others)]
