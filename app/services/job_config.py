"""Turns a client's wishes into the effective JobConfig: every "auto" of the service is decided here, once.

Knows the base model's modules and the amount of data; knows no database.
"""

import secrets
from collections.abc import Collection
from dataclasses import dataclass

from app.contracts.base_models import BaseModelInfo, ModuleShape
from app.contracts.training import (
    JobConfig,
    JobKind,
    LoRAConfig,
    RollbackConfig,
    TrainingConfig,
    TrustRegionConfig,
)
from app.core.errors import InvalidRequestError
from app.services.job_options import Auto, JobOptions, LoRAOptions, RollbackOptions, given

RANK, ALPHA, MAX_RANK = 16, 32.0, 512
LEARNING_RATE = 2e-3
ADAPT_EPOCHS = 3
EPOCHS, EPOCHS_OF_LARGE_FILES, LARGE_FILE_EXAMPLES = 6, 3, 200
"""A small file needs more passes to be learnt."""
BATCH_SIZE, SEQ_LEN = 4, 512
MAX_GRAD_NORM, WEIGHT_DECAY, BETA1, BETA2, EPS = 1.0, 0.0, 0.9, 0.999, 1e-8
GRADIENT_ACCUMULATION = 1
WARMUP_SHARE, MAX_WARMUP_STEPS = 0.05, 10
MAX_DELTA, TOLERANCE, RETENTION_TOLERANCE = 0.05, 1.25, 1.25
OPTIMIZER_BYTES_PER_PARAMETER = 8
"""Two fp32 moments."""

TARGET_ALIASES = {
    "wInProj": "in_proj",
    "wXProj": "x_proj",
    "wDtProj": "dt_proj",
    "wOutProj": "out_proj",
    "wConv": "conv1d",
    "embedding": "embeddings",
}


@dataclass(frozen=True)
class ParentShape:
    """The LoRA shape of the version a run continues from; a continued adapter keeps its shape."""

    name: str
    rank: int
    alpha: float
    targets: list[str]
    parameters: int


def resolve_config(
    kind: JobKind,
    info: BaseModelInfo,
    options: JobOptions,
    examples: int,
    parent: ParentShape | None,
    *,
    retention: bool = False,
) -> JobConfig:
    """Return the effective configuration; `retention` tells of a retention file.

    Raises InvalidRequestError naming the field and what would be accepted."""
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    lora = _continued(options.lora, parent, seed) if parent else _new_lora(options.lora, info, seed)
    return JobConfig(
        mode=options.mode,
        seed=seed,
        lora=lora,
        trust_region=TrustRegionConfig(max_delta=given(options.trust_region.max_delta, MAX_DELTA)),
        rollback=_rollback(options.rollback, retention=retention),
        training=_training(kind, info, options, examples),
    )


def _rollback(wish: RollbackOptions, *, retention: bool) -> RollbackConfig:
    if wish.retention_tolerance != "auto" and not retention:
        raise InvalidRequestError(
            "rollback.retention_tolerance: has no meaning without a retention_file; give one or leave this out",
            code="invalid_value",
            param="rollback.retention_tolerance",
        )
    return RollbackConfig(
        enabled=wish.enabled,
        tolerance=given(wish.tolerance, TOLERANCE),
        retention_tolerance=given(wish.retention_tolerance, RETENTION_TOLERANCE) if retention else None,
    )


def trainable_parameters(info: BaseModelInfo, lora: LoRAConfig) -> int:
    """Return the number of scalars in all LoRA factors; the rank is clamped to each module's smaller side."""
    shapes = _target_shapes(info, lora.targets)
    return sum(min(lora.rank, *_sides(shape)) * sum(_sides(shape)) for shape in shapes)


def _sides(shape: ModuleShape) -> tuple[int, int]:
    return shape.out_features, shape.in_features


def _target_shapes(info: BaseModelInfo, targets: Collection[str]) -> list[ModuleShape]:
    return [shape for name, shape in info.modules.items() if name.rpartition(".")[2] in targets]


def _targets(wanted: list[str], info: BaseModelInfo) -> list[str]:
    known = list(dict.fromkeys(name.rpartition(".")[2] for name in info.modules))
    chosen: list[str] = []
    for i, name in enumerate(wanted):
        target = name if name in known else TARGET_ALIASES.get(name, name)
        if target not in known:
            raise InvalidRequestError(
                f"lora.targets[{i}]: {name!r} is no module of {info.id}; it has {', '.join(known)}",
                code="unknown_target",
                param=f"lora.targets[{i}]",
            )
        chosen.append(target)
    return list(dict.fromkeys(chosen))


def _new_lora(lora: LoRAOptions, info: BaseModelInfo, seed: int) -> LoRAConfig:
    targets = _targets(given(lora.targets, info.default_targets), info)
    limit = min(MAX_RANK, max(min(_sides(shape)) for shape in _target_shapes(info, targets)))
    rank = given(lora.rank, min(RANK, limit))
    if not 1 <= rank <= limit:
        raise InvalidRequestError(
            f"lora.rank: expected 1 to {limit} for {', '.join(targets)} of {info.id}, got {rank}",
            code="invalid_value",
            param="lora.rank",
        )
    return LoRAConfig(rank=rank, alpha=given(lora.alpha, ALPHA), targets=targets, seed=given(lora.seed, seed))


def _continued(lora: LoRAOptions, parent: ParentShape, seed: int) -> LoRAConfig:
    _same("lora.rank", lora.rank, parent.rank, parent.name)
    _same("lora.alpha", lora.alpha, parent.alpha, parent.name)
    targets = lora.targets
    if targets != "auto":
        targets = sorted(TARGET_ALIASES.get(name, name) for name in targets)
    _same("lora.targets", targets, sorted(parent.targets), parent.name)
    return LoRAConfig(rank=parent.rank, alpha=parent.alpha, targets=parent.targets, seed=given(lora.seed, seed))


def _same(field: str, wanted: object, held: object, name: str) -> None:
    if wanted not in ("auto", held):
        raise InvalidRequestError(
            f"{field}: {name} has {held}, which a continued adapter keeps; leave {field} out or start a new adapter",
            code="shape_mismatch",
            param=field,
        )


def _training(kind: JobKind, info: BaseModelInfo, options: JobOptions, examples: int) -> TrainingConfig:
    wish, hyper = options.training, options.hyperparameters
    epochs = _one("n_epochs", hyper.n_epochs, "training.epochs", wish.epochs, _epochs(kind, examples))
    batch_size = _one("batch_size", hyper.batch_size, "training.batch_size", wish.batch_size, BATCH_SIZE)
    accumulation = given(wish.gradient_accumulation, GRADIENT_ACCUMULATION)
    steps = epochs * -(-examples // (batch_size * accumulation))
    return TrainingConfig(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=_learning_rate(options),
        seq_len=_seq_len(wish.seq_len, info),
        max_grad_norm=given(wish.max_grad_norm, MAX_GRAD_NORM),
        weight_decay=given(wish.weight_decay, WEIGHT_DECAY),
        beta1=given(wish.beta1, BETA1),
        beta2=given(wish.beta2, BETA2),
        eps=given(wish.eps, EPS),
        gradient_accumulation=accumulation,
        warmup_steps=given(wish.warmup_steps, min(MAX_WARMUP_STEPS, round(WARMUP_SHARE * steps))),
        schedule="cosine" if wish.schedule == "auto" else wish.schedule,
    )


def _epochs(kind: JobKind, examples: int) -> int:
    if kind == "adapt":
        return ADAPT_EPOCHS
    return EPOCHS if examples < LARGE_FILE_EXAMPLES else EPOCHS_OF_LARGE_FILES


def _one(name: str, hyper: int | Auto, other_name: str, other: int | Auto, default: int) -> int:
    if hyper != "auto" and other not in ("auto", hyper):
        raise InvalidRequestError(
            f"{other_name}: contradicts hyperparameters.{name} ({hyper} there, {other} here); give one of them",
            code="invalid_value",
            param=other_name,
        )
    return given(other, given(hyper, default))


def _learning_rate(options: JobOptions) -> float:
    multiplier = options.hyperparameters.learning_rate_multiplier
    wanted = options.training.learning_rate
    if multiplier != "auto" and wanted != "auto":
        raise InvalidRequestError(
            "training.learning_rate: contradicts hyperparameters.learning_rate_multiplier; give one of them",
            code="invalid_value",
            param="training.learning_rate",
        )
    return given(wanted, LEARNING_RATE * given(multiplier, 1.0))


def _seq_len(wanted: int | Auto, info: BaseModelInfo) -> int:
    seq_len = given(wanted, min(info.context_length, SEQ_LEN))
    if seq_len > info.context_length:
        raise InvalidRequestError(
            f"training.seq_len: expected 2 to {info.context_length}, the context of {info.id}, got {seq_len}",
            code="invalid_value",
            param="training.seq_len",
        )
    return seq_len
