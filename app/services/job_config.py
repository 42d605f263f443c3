"""Turns a client's wishes into the effective JobConfig: every "auto" of the service is decided here, once.

Knows the base model's description and the amount of data; knows no database. What is trained, `trained_part` decides.
"""

import secrets

from app.contracts.base_models import BaseModelInfo
from app.contracts.training import (
    JobConfig,
    JobKind,
    Mode,
    RollbackConfig,
    ShardConfig,
    TrainingConfig,
    TrustRegionConfig,
)
from app.core.errors import InvalidRequestError
from app.services.job_options import Auto, JobOptions, RollbackOptions, given
from app.services.trained_part import ParentShape, resolve_lora, resolve_mode

LEARNING_RATES: dict[Mode, float] = {"lora": 2e-3, "wsla": 5e-4, "full": 2e-4}
"""Low-rank factors bear about ten times the rate of the weights themselves."""
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

    Raises InvalidRequestError naming the field and what would be accepted.
    """
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    mode = resolve_mode(info, options, parent)
    return JobConfig(
        mode=mode,
        seed=seed,
        lora=resolve_lora(info, options.lora, parent, seed) if mode == "lora" else None,
        trust_region=TrustRegionConfig(
            max_delta=given(options.trust_region.max_delta, MAX_DELTA),
            max_relative_update=options.trust_region.max_relative_update,
        ),
        rollback=_rollback(options.rollback, retention=retention),
        training=_training(kind, mode, info, options, examples),
    )


def optimizer_bytes(parameters: int, config: JobConfig) -> int:
    """Return the size of the moments for this many trained scalars; a shard holds its part."""
    shard = config.training.shard
    return OPTIMIZER_BYTES_PER_PARAMETER * -(-parameters // (shard.count if shard else 1))


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


def _training(kind: JobKind, mode: Mode, info: BaseModelInfo, options: JobOptions, examples: int) -> TrainingConfig:
    wish, hyper = options.training, options.hyperparameters
    epochs = _one("n_epochs", hyper.n_epochs, "training.epochs", wish.epochs, _epochs(kind, examples))
    batch_size = _one("batch_size", hyper.batch_size, "training.batch_size", wish.batch_size, BATCH_SIZE)
    accumulation = given(wish.gradient_accumulation, GRADIENT_ACCUMULATION)
    steps = epochs * -(-examples // (batch_size * accumulation))
    return TrainingConfig(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=_learning_rate(options, LEARNING_RATES[mode]),
        seq_len=_seq_len(wish.seq_len, info),
        max_grad_norm=given(wish.max_grad_norm, MAX_GRAD_NORM),
        weight_decay=given(wish.weight_decay, WEIGHT_DECAY),
        beta1=given(wish.beta1, BETA1),
        beta2=given(wish.beta2, BETA2),
        eps=given(wish.eps, EPS),
        gradient_accumulation=accumulation,
        warmup_steps=given(wish.warmup_steps, min(MAX_WARMUP_STEPS, round(WARMUP_SHARE * steps))),
        schedule="cosine" if wish.schedule == "auto" else wish.schedule,
        activation_checkpointing=wish.activation_checkpointing,
        shard=_shard(options, mode),
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


def _shard(options: JobOptions, mode: Mode) -> ShardConfig | None:
    shard = options.training.shard
    if shard is None:
        return None
    if shard.index >= shard.count:
        raise InvalidRequestError(
            f"training.shard.index: expected 0 to {shard.count - 1} with count {shard.count}, got {shard.index}",
            code="invalid_value",
            param="training.shard.index",
        )
    if mode == "lora" and options.trust_region.max_relative_update is not None:
        raise InvalidRequestError(
            "trust_region.max_relative_update: bounds the product of two factors, which training.shard may give to "
            "different trainers; leave one of them out",
            code="invalid_value",
            param="trust_region.max_relative_update",
        )
    return ShardConfig(index=shard.index, count=shard.count)


def _learning_rate(options: JobOptions, default: float) -> float:
    multiplier = options.hyperparameters.learning_rate_multiplier
    wanted = options.training.learning_rate
    if multiplier != "auto" and wanted != "auto":
        raise InvalidRequestError(
            "training.learning_rate: contradicts hyperparameters.learning_rate_multiplier; give one of them",
            code="invalid_value",
            param="training.learning_rate",
        )
    return given(wanted, default * given(multiplier, 1.0))


def _seq_len(wanted: int | Auto, info: BaseModelInfo) -> int:
    seq_len = given(wanted, min(info.context_length, SEQ_LEN))
    if seq_len > info.context_length:
        raise InvalidRequestError(
            f"training.seq_len: expected 2 to {info.context_length}, the context of {info.id}, got {seq_len}",
            code="invalid_value",
            param="training.seq_len",
        )
    return seq_len
