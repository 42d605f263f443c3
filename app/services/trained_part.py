"""Decides what of the base model a job trains: its mode, and in mode `lora` the adapter's shape.

Knows the base model's description and the version that a job continues from; knows no data and no database.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.contracts.base_models import BaseModelInfo
from app.contracts.targets import (
    UnknownTargetError,
    canonical_targets,
    clamped_rank,
    low_rank_sizes,
    plan_targets,
    scalars,
    selective_shapes,
)
from app.contracts.training import JobConfig, LoRAConfig, Mode
from app.core.errors import InvalidRequestError
from app.services.job_options import JobOptions, LoRAOptions, given

RANK, ALPHA, MAX_RANK = 16, 32.0, 512


@dataclass(frozen=True)
class ParentShape:
    """What the version a run continues from is made of; a continued adapter keeps its mode and its shape."""

    name: str
    rank: int
    alpha: float
    targets: list[str]
    parameters: int
    mode: Mode = "lora"


def resolve_mode(info: BaseModelInfo, options: JobOptions, parent: ParentShape | None) -> Mode:
    """Return the mode. Raises InvalidRequestError where the base model or the parent cannot have the one asked for."""
    mode = given(options.mode, parent.mode if parent else "lora")
    if parent and mode != parent.mode:
        raise _refusal(
            "mode",
            f"{parent.name} was trained in mode {parent.mode}, which a continued adapter keeps; leave mode out or "
            "start a new adapter",
            code="shape_mismatch",
        )
    if mode == "wsla" and not info.selective:
        raise _refusal("mode", f"{info.id} has no selective projection, the one thing that mode wsla trains; use lora")
    if mode == "full" and info.quantization != "none":
        raise _refusal("mode", f"full needs unquantised weights, and those of {info.id} are {info.quantization}")
    given_lora = options.lora.model_fields_set - {"seed"}
    if mode != "lora" and given_lora:
        field = f"lora.{sorted(given_lora)[0]}"
        raise _refusal(field, f"has no meaning in mode {mode}; leave it out or use mode lora")
    return mode


def resolve_lora(info: BaseModelInfo, lora: LoRAOptions, parent: ParentShape | None, seed: int) -> LoRAConfig:
    """Return the shape of a new or a continued adapter. Raises InvalidRequestError naming the field."""
    if parent:
        return _continued(info, lora, parent, seed)
    targets = _targets(info, given(lora.targets, info.default_targets))
    sides = [min(shape.out_features, shape.in_features) for shape in plan_targets(info, targets).modules.values()]
    rank = given(lora.rank, min(RANK, max(sides, default=RANK)))
    if not 1 <= rank <= MAX_RANK:
        raise _refusal("lora.rank", f"expected 1 to {MAX_RANK}, got {rank}")
    return _config(info, rank, given(lora.alpha, ALPHA), targets, given(lora.seed, seed))


def trainable_parameters(info: BaseModelInfo, config: JobConfig) -> int:
    """Return how many scalars a new adapter trains; a rank is clamped to each module's smaller side."""
    if config.mode == "full":
        return info.parameters
    if config.lora is None:
        return sum(map(scalars, selective_shapes(info).values()))
    plan = plan_targets(info, config.lora.targets)
    low_rank = sum(sum(low_rank_sizes(config.lora.rank, shape)) for shape in plan.modules.values())
    return low_rank + sum(map(scalars, plan.tensors.values()))


def _config(info: BaseModelInfo, rank: int, alpha: float, targets: list[str], seed: int) -> LoRAConfig:
    clamped: dict[str, int] = {}
    for target in targets:
        ranks = [clamped_rank(rank, shape) for shape in plan_targets(info, [target]).modules.values()]
        if min(ranks, default=rank) < rank:
            clamped[target] = min(ranks)
    return LoRAConfig(rank=rank, alpha=alpha, targets=targets, seed=seed, clamped=clamped)


def _targets(info: BaseModelInfo, wanted: Sequence[str]) -> list[str]:
    for i, name in enumerate(wanted):
        try:
            canonical_targets(info, [name])
        except UnknownTargetError as error:
            raise _refusal(f"lora.targets[{i}]", str(error), code="unknown_target") from error
    return canonical_targets(info, wanted)


def _continued(info: BaseModelInfo, lora: LoRAOptions, parent: ParentShape, seed: int) -> LoRAConfig:
    _same("lora.rank", lora.rank, parent.rank, parent.name)
    _same("lora.alpha", lora.alpha, parent.alpha, parent.name)
    held = _targets(info, parent.targets)
    wanted = lora.targets if lora.targets == "auto" else sorted(_targets(info, lora.targets))
    _same("lora.targets", wanted, sorted(held), parent.name)
    return _config(info, parent.rank, parent.alpha, held, given(lora.seed, seed))


def _same(field: str, wanted: object, held: object, name: str) -> None:
    if wanted not in ("auto", held):
        raise _refusal(
            field,
            f"{name} has {held}, which a continued adapter keeps; leave {field} out or start a new adapter",
            code="shape_mismatch",
        )


def _refusal(field: str, why: str, code: str = "invalid_value") -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {why}", code=code, param=field)
