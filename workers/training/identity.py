"""Tells one training run from another, so that a snapshot resumes only the run it was taken of."""

import hashlib
from collections.abc import Iterable

from torch import Tensor

from app.contracts.training import JobConfig
from workers.lora.adapter import AdapterWeights
from workers.training.dataset import Window, windows_sha256


def _adapter_sha256(adapter: AdapterWeights) -> str:
    digest = hashlib.sha256()
    parts: dict[str, tuple[Tensor, ...]] = {}
    parts |= {f"{name}:{adapter.scales[name]!r}": factors for name, factors in adapter.tensors.items()}
    parts |= {f"delta:{name}": (tensor,) for name, tensor in adapter.dense.items()}
    parts |= {f"own:{name}": (tensor,) for name, tensor in adapter.own.items()}
    for name, tensors in parts.items():
        digest.update(name.encode())
        for tensor in tensors:
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def run_id(config: JobConfig, start: AdapterWeights, data: Iterable[Iterable[Window]], numerics: str) -> str:
    """Return a digest of all that decides a run's outcome; `numerics` names dtype and slicing."""
    parts = [config.model_dump_json(), _adapter_sha256(start), *map(windows_sha256, data), numerics]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
