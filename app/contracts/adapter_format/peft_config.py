"""PEFT's `adapter_config.json`: what decides how an adapter computes is read, and what we do not do is refused by name.

One key of ours, `graft`, says what the file holds beside or instead of PEFT's tensors; PEFT warns and passes it over.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import SchemaError

from app.contracts.adapter_format.errors import AdapterFormatError
from app.contracts.training import Mode

MAX_RANK = 512
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


class GraftPart(BaseModel):
    """Our key: the mode it was trained in. `full` is a complete checkpoint, else there may be dense deltas."""

    model_config = ConfigDict(extra="forbid")

    mode: Mode


class PeftPart(BaseModel):
    """The fields of PEFT's that decide what an adapter does."""

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
    ensure_weight_tying: bool = False


def read_graft(config: Mapping[str, object]) -> GraftPart | None:
    """Return our part of a configuration, if it has one. Raises AdapterFormatError naming the field."""
    if config.get("graft") is None:
        return None
    try:
        return GraftPart.model_validate(config["graft"])
    except ValidationError as error:
        raise _refusal(error, "graft.") from error


def read_peft(config: Mapping[str, object]) -> PeftPart:
    """Return PEFT's part of a configuration. Raises AdapterFormatError naming what is wrong or not supported."""
    try:
        parsed = PeftPart.model_validate({name: value for name, value in config.items() if name != "graft"})
    except ValidationError as error:
        raise _refusal(error) from error
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


def targeted(config: PeftPart, linears: Sequence[str], others: Sequence[str]) -> set[str]:
    """Return the modules that `target_modules` names; "all-linear" leaves out the `others`.

    Raises AdapterFormatError.
    """
    if config.target_modules == "all-linear":
        return set(linears)
    names = [*linears, *others]
    if isinstance(config.target_modules, str):
        return _matching(config.target_modules, names, "target_modules")
    found: set[str] = set()
    for target in config.target_modules:
        hits = {name for name in names if name == target or name.endswith(f".{target}")}
        if not hits:
            raise AdapterFormatError(f"target_modules: {target!r} matches no module of the base model", target)
        found |= hits
    return found


def by_pattern(patterns: Mapping[str, float], names: Sequence[str], field: str) -> dict[str, float]:
    """Return each name's value; the first pattern that matches the end of the name, at a dot, wins."""
    values: dict[str, float] = {}
    for pattern, value in patterns.items():
        for name in _matching(rf"(?:.*\.)?(?:{pattern})", names, field):
            values.setdefault(name, value)
    return values


def _refusal(error: ValidationError, prefix: str = "") -> AdapterFormatError:
    first = error.errors()[0]
    field = prefix + ".".join(str(part) for part in first["loc"])
    return AdapterFormatError(f"adapter_config.json: {field.rstrip('.')}: {first['msg']}")


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
