"""Loads a base model by its source and describes it for the service. Knows sources, devices and dtypes.

Sources: `gguf:PATH`, `gguf:package/NAME` (the one .gguf inside an installed package), `hf:DIRECTORY`, `evl0:PATH`.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch

from app.contracts.base_models import BaseModelInfo, ModuleShape
from workers.kernels.quantized_weight import KINDS, Kind
from workers.loading.architectures.base import Json
from workers.loading.checkpoint import Checkpoint, LoadingError, copy_weights
from workers.loading.evl0_source import read_evl0
from workers.loading.gguf import read_gguf
from workers.loading.hf import read_hf
from workers.models.language_model import LanguageModel

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
_CPU_FLAGS = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class LoadedBase:
    """The frozen model, what the service needs to know of it, and the config.json it came with (empty: none)."""

    model: LanguageModel
    info: BaseModelInfo
    config_json: Json


def _packaged_gguf(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise LoadingError(f"package {package} is not installed")
    found = [path for place in spec.submodule_search_locations for path in sorted(Path(place).rglob("*.gguf"))]
    if len(found) != 1:
        raise LoadingError(f"package {package} holds {len(found)} .gguf files, expected one")
    return found[0]


def _read(source: str) -> Checkpoint:
    kind, _, place = source.partition(":")
    if kind == "gguf" and place:
        package = place.removeprefix("package/")
        return read_gguf(Path(place) if package == place else _packaged_gguf(package))
    if kind == "hf" and place:
        return read_hf(Path(place))
    if kind == "evl0" and place:
        return read_evl0(Path(place))
    raise LoadingError(f"source {source!r} is none of gguf:PATH, gguf:package/NAME, hf:DIRECTORY, evl0:PATH")


def resolve_device(device: str) -> torch.device:
    """Return the device; `auto` is CUDA where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Return the dtype; `auto` is bfloat16 where the device multiplies it natively, else float32."""
    if dtype != "auto":
        if dtype not in _DTYPES:
            raise LoadingError(f"dtype {dtype!r} is none of auto, {', '.join(_DTYPES)}")
        return _DTYPES[dtype]
    if device.type == "cuda":
        return torch.bfloat16
    flags = set(_CPU_FLAGS.read_text().split()) if _CPU_FLAGS.exists() else set()
    return torch.bfloat16 if flags & {"avx512_bf16", "amx_bf16"} else torch.float32


def _describe(model: LanguageModel, checkpoint: Checkpoint, model_id: str, quantization: str) -> BaseModelInfo:
    modules = {
        name: ModuleShape(out_features=module.out_features, in_features=module.in_features)
        for name, module in model.linears().items()
    }
    weights = model.weights()
    return BaseModelInfo(
        id=model_id,
        architecture=checkpoint.architecture,
        parameters=sum(weight.shape.numel() for weight in weights.values()),
        bytes=sum(weight.nbytes for weight in weights.values()),
        context_length=model.config.context_length,
        vocab_size=model.config.vocab_size,
        hidden_size=model.config.hidden_size,
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=quantization,
        modules=modules,
        embedding=model.vocabulary.name,
        tied_head=model.config.head if model.config.tied_head else "",
        weights={name: list(weight.shape) for name, weight in weights.items()},
        tensors={name: list(weight.shape) for name, weight in weights.items() if weight.dense_target},
        selective=[w.name for s in model.sublayers() for w in s.mixer.selective()],
        default_targets=sorted({name.rpartition(".")[2] for name in modules}),
        tokenizer_json=checkpoint.tokenizer_json,
        chat_template=checkpoint.chat_template,
        bos_token_id=checkpoint.bos_token_id,
        eos_token_ids=checkpoint.eos_token_ids,
    )


def _quantization(name: str) -> Kind | None:
    if name == "none":
        return None
    for kind in KINDS:
        if name == kind:
            return kind
    raise LoadingError(f"quantization {name!r} is not supported, only none, {', '.join(KINDS)}")


def load_base_model(source: str, *, model_id: str, device: str, dtype: str, quantization: str) -> LoadedBase:
    """Load and freeze a base model. Raises LoadingError naming the file, field or tensor at fault."""
    kind = _quantization(quantization)
    place = resolve_device(device)
    checkpoint = _read(source)
    model = LanguageModel(checkpoint.config, place, resolve_dtype(dtype, place))
    copy_weights(model, checkpoint.tensors, checkpoint.architecture, kind)
    model.freeze()
    return LoadedBase(model, _describe(model, checkpoint, model_id, quantization), checkpoint.config_json)
