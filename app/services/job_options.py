"""What a client may wish for in a training run. "auto", the default of every field, leaves the choice to the service.

Knows the wishes and their bounds by themselves; `job_config` checks them against base model and data.
"""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from app.contracts.training import Mode

Auto = Literal["auto"]
T = TypeVar("T")

Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Options(BaseModel):
    """Base of all wishes: unknown fields, numbers in strings and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class LoRAOptions(Options):
    """Shape of a new adapter. `rank` is checked with the base model at hand, so that its real limits are named."""

    rank: int | Auto = "auto"
    alpha: Annotated[float, Field(gt=0, le=65536)] | Auto = "auto"
    targets: Annotated[list[str], Field(min_length=1, max_length=64)] | Auto = "auto"
    seed: Seed | Auto = "auto"


class TrustRegionOptions(Options):
    """Largest change of any trained scalar in one step (0: no limit), and of a weight matrix relative to its norm."""

    max_delta: Annotated[float, Field(ge=0)] | Auto = "auto"
    max_relative_update: Annotated[float, Field(gt=0)] | None = None


class ShardOptions(Options):
    """Step only the parameters with position % count == index, so that `count` jobs share the optimizer's state."""

    index: Annotated[int, Field(ge=0)]
    count: Annotated[int, Field(ge=1, le=1024)]


class RollbackOptions(Options):
    """The gate: publish only if perplexity stays within `tolerance` times what it was, on a retention file too."""

    enabled: bool = True
    tolerance: Annotated[float, Field(gt=0)] | Auto = "auto"
    retention_tolerance: Annotated[float, Field(gt=0)] | Auto = "auto"


class TrainingOptions(Options):
    """Optimizer and batching. Lengths are in tokens, `batch_size` in examples."""

    epochs: Annotated[int, Field(ge=1, le=1000)] | Auto = "auto"
    batch_size: Annotated[int, Field(ge=1, le=1024)] | Auto = "auto"
    learning_rate: Annotated[float, Field(gt=0, le=10)] | Auto = "auto"
    seq_len: Annotated[int, Field(ge=2)] | Auto = "auto"
    max_grad_norm: Annotated[float, Field(ge=0)] | Auto = "auto"
    weight_decay: Annotated[float, Field(ge=0, le=10)] | Auto = "auto"
    beta1: Annotated[float, Field(ge=0, lt=1)] | Auto = "auto"
    beta2: Annotated[float, Field(ge=0, lt=1)] | Auto = "auto"
    eps: Annotated[float, Field(gt=0, le=1)] | Auto = "auto"
    gradient_accumulation: Annotated[int, Field(ge=1, le=1024)] | Auto = "auto"
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] | Auto = "auto"
    schedule: Literal["auto", "cosine", "constant"] = "auto"
    activation_checkpointing: bool = False
    shard: ShardOptions | None = None


class Hyperparameters(Options):
    """OpenAI's three."""

    n_epochs: Annotated[int, Field(ge=1, le=1000)] | Auto = "auto"
    batch_size: Annotated[int, Field(ge=1, le=1024)] | Auto = "auto"
    learning_rate_multiplier: Annotated[float, Field(gt=0, le=1000)] | Auto = "auto"


class JobOptions(Options):
    """Everything a run can be asked for, besides its model and data."""

    mode: Mode | Auto = "auto"
    seed: Seed | None = None
    lora: LoRAOptions = LoRAOptions()
    trust_region: TrustRegionOptions = TrustRegionOptions()
    rollback: RollbackOptions = RollbackOptions()
    training: TrainingOptions = TrainingOptions()
    hyperparameters: Hyperparameters = Hyperparameters()


def given(value: T | Auto, otherwise: T) -> T:
    """Return the client's value, or `otherwise` where it said "auto"."""
    return otherwise if value == "auto" else value
