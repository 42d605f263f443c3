"""The adapter file format: PEFT's `adapter_config.json` and `adapter_model.safetensors`, LoRA on linear modules.

Shared by upload validation and by workers, so that what the service accepts is what a worker can load. Knows names,
shapes and bytes; no torch, no storage. What would change the result and is not supported is refused by name.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import SchemaError
from safetensors import SafetensorError, deserialize

from app.contracts.base_models import ModuleShape

PREFIX = "base_model.model."
MAX_RANK = 512
_FLOATS = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "BF16": np.uint16}
_HARMLESS_INITS = (True, False, "gaussian", "eva", "orthogonal")
# These change nothing once the adapter is trained, or nothing while the features they belong to are off.
_IGNORED = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "inference_mode",
    "layers_pattern",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
}


class AdapterFormatError(ValueError):
    """An adapter that cannot be used; `tensor` names the tensor or module at fault, when there is one."""

    def __init__(self, message: str, tensor: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.tensor = tensor


class ModulePlan(NamedTuple):
    """How one module is adapted: weight + scale · B A, and the tensors' names in the file."""

    rank: int
    scale: float
    a_key: str
    b_key: str


class _Config(BaseModel):
    """The fields of `adapter_config.json` that decide what an adapter does."""

    model_config = ConfigDict(extra="allow")

    peft_type: str
    task_type: str | None = None
    r: int = Field(ge=1, le=MAX_RANK)
    lora_alpha: float = Field(gt=0, allow_inf_nan=False)
    target_modules: list[str] | str
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}
    use_rslora: bool = False
    bias: str = "none"
    init_lora_weights: bool | str | None = True


def _parse(config: Mapping[str, object]) -> _Config:
    try:
        parsed = _Config.model_validate(dict(config))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise AdapterFormatError(f"adapter_config.json: {field}: {first['msg']}") from error
    if parsed.peft_type != "LORA":
        raise AdapterFormatError(f"adapter_config.json: peft_type {parsed.peft_type!r} is not supported, only LORA")
    if parsed.task_type not in {None, "CAUSAL_LM"}:
        raise AdapterFormatError(
            f"adapter_config.json: task_type {parsed.task_type!r} is not supported, only CAUSAL_LM"
        )
    if parsed.bias != "none":
        raise AdapterFormatError(f"adapter_config.json: bias {parsed.bias!r} is not supported, only none")
    if parsed.init_lora_weights not in (None, *_HARMLESS_INITS):
        name = parsed.init_lora_weights
        raise AdapterFormatError(f"adapter_config.json: init_lora_weights {name!r} is not supported: it moves the base")
    for name, value in sorted((parsed.model_extra or {}).items()):
        if value and name not in _IGNORED:
            raise AdapterFormatError(f"adapter_config.json: {name} is not supported")
    return parsed


def _matching(pattern: str, names: Sequence[str], field: str) -> set[str]:
    """Return the names that a tenant's pattern matches whole. pydantic's engine is linear in time, Python's is not."""
    try:
        whole = TypeAdapter(Annotated[str, StringConstraints(pattern=f"^(?:{pattern})$")])
    except SchemaError as error:
        raise AdapterFormatError(f"adapter_config.json: {field}: {pattern!r} is not a usable pattern") from error

    def matches(name: str) -> bool:
        try:
            whole.validate_python(name)
        except ValidationError:
            return False
        return True

    return {name for name in names if matches(name)}


def _targets(config: _Config, names: Sequence[str]) -> set[str]:
    if config.target_modules == "all-linear":
        return set(names)
    if isinstance(config.target_modules, str):
        return _matching(config.target_modules, names, "target_modules")
    found: set[str] = set()
    for target in config.target_modules:
        hits = {name for name in names if name == target or name.endswith(f".{target}")}
        if not hits:
            raise AdapterFormatError(f"target_modules: {target!r} matches no module of the base model", target)
        found |= hits
    return found


def _by_pattern(patterns: Mapping[str, float], names: Sequence[str], field: str) -> dict[str, float]:
    """Return each name's value; the first pattern that matches the end of the name, at a dot, wins."""
    values: dict[str, float] = {}
    for pattern, value in patterns.items():
        for name in _matching(rf"(?:.*\.)?(?:{pattern})", names, field):
            values.setdefault(name, value)
    return values


def _keys(name: str) -> tuple[str, str]:
    return f"{PREFIX}{name}.lora_A.weight", f"{PREFIX}{name}.lora_B.weight"


def _check_names(shapes: Mapping[str, tuple[int, ...]], modules: Mapping[str, ModuleShape], targets: set[str]) -> None:
    for key in sorted(shapes):
        match = re.fullmatch(rf"{re.escape(PREFIX)}(.+)\.lora_([AB])\.weight", key)
        if match is None or match[1] not in modules:
            raise AdapterFormatError(f"tensor {key} matches no linear module of the base model", key)
        if match[1] not in targets:
            raise AdapterFormatError(f"tensor {key} belongs to a module that target_modules does not name", key)
    for name in sorted(targets):
        for key, other in (_keys(name), _keys(name)[::-1]):
            if key not in shapes:
                because = f"{other} needs it" if other in shapes else "target_modules names its module"
                raise AdapterFormatError(f"tensor {key} is missing: {because}", key)


def plan_adapter(
    config: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]], modules: Mapping[str, ModuleShape]
) -> dict[str, ModulePlan]:
    """Check a PEFT configuration against tensor shapes and a base model's modules; return the plan of each module.

    Every tensor must belong to a targeted module and every targeted module must have both factors, of the right shape.
    Raises AdapterFormatError naming the field, tensor or module.
    """
    parsed = _parse(config)
    names = list(modules)
    targets = _targets(parsed, names)
    if not targets:
        raise AdapterFormatError("target_modules matches no module of the base model")
    _check_names(shapes, modules, targets)
    ranks = _by_pattern(parsed.rank_pattern, names, "rank_pattern")
    alphas = _by_pattern(parsed.alpha_pattern, names, "alpha_pattern")
    plan = {}
    for name in names:
        if name not in targets:
            continue
        rank, alpha = int(ranks.get(name, parsed.r)), alphas.get(name, parsed.lora_alpha)
        if not 1 <= rank <= MAX_RANK:
            raise AdapterFormatError(f"rank_pattern: rank {rank} of {name} is not in 1..{MAX_RANK}", name)
        a_key, b_key = _keys(name)
        expected = {a_key: (rank, modules[name].in_features), b_key: (modules[name].out_features, rank)}
        for key, shape in expected.items():
            if tuple(shapes[key]) != shape:
                raise AdapterFormatError(f"tensor {key} has shape {tuple(shapes[key])}, expected {shape}", key)
        plan[name] = ModulePlan(rank, alpha / (rank**0.5 if parsed.use_rslora else rank), a_key, b_key)
    return plan


def tensor_shapes(data: bytes) -> dict[str, tuple[int, ...]]:
    """Return the shapes in a safetensors file after checking that every tensor is finite floating point.

    Raises AdapterFormatError naming the tensor.
    """
    try:
        tensors = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise AdapterFormatError(f"not a safetensors file: {error}") from error
    shapes = {}
    for name, info in tensors:
        dtype = info["dtype"]
        if dtype not in _FLOATS:
            raise AdapterFormatError(f"tensor {name} has type {dtype}, expected one of {', '.join(_FLOATS)}", name)
        values = np.frombuffer(info["data"], dtype=_FLOATS[dtype])
        # A bfloat16 is not finite exactly when all its exponent bits are set.
        finite = (values & 0x7F80) != 0x7F80 if dtype == "BF16" else np.isfinite(values)
        if not finite.all():
            raise AdapterFormatError(f"tensor {name} holds a value that is not finite", name)
        shapes[name] = tuple(info["shape"])
    return shapes


def peft_config(
    *,
    base_model: str,
    rank: int,
    alpha: float,
    targets: Sequence[str],
    ranks: Mapping[str, int],
    scales: Mapping[str, float],
) -> dict[str, object]:
    """Return the `adapter_config.json` of an adapter with these ranks and scales by module name."""
    alphas = {name: scales[name] * ranks[name] for name in ranks}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted(targets),
        "rank_pattern": {re.escape(name): r for name, r in sorted(ranks.items()) if r != rank},
        "alpha_pattern": {re.escape(n): a for n, a in sorted(alphas.items()) if abs(a - alpha) > 1e-9 * alpha},
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": False,
        "modules_to_save": None,
    }
