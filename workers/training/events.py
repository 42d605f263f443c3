"""What a training run tells its caller. Knows contracts and adapter weights, nothing of how they are used."""

from dataclasses import dataclass

from app.contracts.training import StepMetrics, TrainingResult
from workers.lora.adapter import AdapterWeights


@dataclass(frozen=True)
class StepDone:
    """An optimizer step was taken or skipped; `TrainingRun.snapshot()` is valid until the next slice."""

    metrics: StepMetrics


@dataclass(frozen=True)
class EpochDone:
    """Epoch `epoch` (from 1) ended after optimizer step `step` with mean training loss `loss`, in nats."""

    epoch: int
    loss: float
    step: int
    adapter: AdapterWeights


@dataclass(frozen=True)
class SetBack:
    """After step `step` the run went back to its last good state for the `times`-th time, at `share` of the rate."""

    step: int
    times: int
    share: float


@dataclass(frozen=True)
class Finished:
    """The run ended. `adapter` is None when it was rolled back: nothing may be published."""

    result: TrainingResult
    adapter: AdapterWeights | None


RunEvent = StepDone | EpochDone | SetBack | Finished
