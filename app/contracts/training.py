"""The effective configuration of a training job, what a worker reports, and what it returns.

Every `"auto"` has been resolved by the service before a config is stored, so a worker never guesses.
"""

from typing import Literal

from pydantic import Field

from app.contracts.base import Contract

JobKind = Literal["fine_tune", "adapt"]
Schedule = Literal["cosine", "constant"]
Mode = Literal["lora", "wsla", "full"]
Priority = Literal["high", "normal", "low"]
PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")
"""In the order in which a tenant's jobs are taken."""
JobStatus = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]
TERMINAL_STATUSES: frozenset[JobStatus] = frozenset({"succeeded", "failed", "cancelled"})


class LoRAConfig(Contract):
    """Low-rank adapter: delta = alpha / rank * B A. `targets` are names that `app.contracts.targets` resolves.

    `clamped` holds the targets with a module whose smaller side is below `rank`, and the smallest rank among them.
    """

    rank: int = Field(ge=1, le=512)
    alpha: float = Field(gt=0)
    targets: list[str] = Field(min_length=1)
    seed: int
    clamped: dict[str, int] = Field(default_factory=dict)


class TrustRegionConfig(Contract):
    """How far one optimizer step may go, weight decay included.

    `max_delta` bounds the change of any trained scalar, 0 disables it. `max_relative_update` bounds the norm of the
    change of a weight matrix (for low-rank factors: of their product) by a share of the base weight's norm.
    """

    max_delta: float = Field(ge=0)
    max_relative_update: float | None = Field(default=None, gt=0)


class ShardConfig(Contract):
    """The run steps only the parameters with position % count == index and holds moments for those alone."""

    index: int = Field(ge=0)
    count: int = Field(ge=1)


class RollbackConfig(Contract):
    """The gate: publish only if perplexity_after <= tolerance * perplexity_before and all losses were finite.

    With a retention file its perplexity must keep to `retention_tolerance` likewise; without one that is None.
    """

    enabled: bool
    tolerance: float = Field(gt=0)
    retention_tolerance: float | None = Field(default=None, gt=0)


class TrainingConfig(Contract):
    """Optimizer and batching. `batch_size` counts examples per micro-batch; lengths are in tokens."""

    epochs: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    seq_len: int = Field(ge=2)
    max_grad_norm: float = Field(ge=0)
    weight_decay: float = Field(ge=0)
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    eps: float = Field(gt=0)
    gradient_accumulation: int = Field(ge=1)
    warmup_steps: int = Field(ge=0)
    schedule: Schedule = "cosine"
    """Of the learning rate after the warm-up."""
    activation_checkpointing: bool = False
    """Keep one layer's activations at a time and compute the others' again in the backward pass."""
    shard: ShardConfig | None = None


class JobConfig(Contract):
    """Everything a run depends on, besides the data and the base model.

    Mode `lora` trains an adapter and has a `lora` section, `wsla` dense deltas of the selective projection only, `full`
    a copy of every weight.
    """

    mode: Mode
    seed: int
    lora: LoRAConfig | None
    trust_region: TrustRegionConfig
    rollback: RollbackConfig
    training: TrainingConfig


class StepMetrics(Contract):
    """One optimizer step. `grad_norm` is the L2 norm before the clip, `learning_rate` the effective one.

    `clamped` is the share of trained scalars that max_delta held back, `scaled` the share whose step was made shorter
    by max_relative_update (None without that bound).
    A `skipped` step changed nothing, because its loss or its gradient was not finite: that one is None, for JSON has no
    such number, and so is a gradient norm that was not computed.
    """

    step: int
    total_steps: int
    epoch: int
    loss: float | None
    grad_norm: float | None
    learning_rate: float
    clamped: float
    scaled: float | None = None
    skipped: bool
    tokens: int
    """Tokens seen since the start of the run."""
    tokens_per_second: float
    eta_seconds: float


class TrainingResult(Contract):
    """How a run ended. `rolled_back` means nothing is published and `rollback_reason` says why, in plain words."""

    losses: list[float]
    """Mean training loss of each epoch."""
    grad_norm: float
    perplexity_before: float | None
    perplexity_after: float | None
    gate_data: Literal["validation_file", "held_out", "training_text"]
    retention_before: float | None = None
    """Perplexity on the retention file, if there is one."""
    retention_after: float | None = None
    rolled_back: bool
    rollback_reason: str | None
    steps: int
    trained_tokens: int
    duration_ms: int
    trainable_parameters: int | None = None
    """Scalars that the run could move, as counted by the worker."""
    optimizer_state_bytes: int | None = None
    """Of the moments that the worker held."""
