"""Bodies that create jobs: OpenAI's fields, and ours on the top level beside them."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from app.api.schemas.common import RequestBody, only
from app.contracts.training import Mode, Priority
from app.core.errors import InvalidRequestError
from app.services.job_options import (
    Auto,
    Hyperparameters,
    JobOptions,
    LoRAOptions,
    RollbackOptions,
    Seed,
    TrainingOptions,
    TrustRegionOptions,
)
from app.services.model_names import ADAPTER_NAME

MetadataKey = Annotated[str, StringConstraints(pattern=r'^[^"\\\x00-\x1f]{1,64}$')]
MetadataValue = Annotated[str, StringConstraints(max_length=512, pattern=r"^[^\x00]*$")]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]
AdapterName = Annotated[str, StringConstraints(pattern=ADAPTER_NAME)]
FileId = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]


def _supervised_only(kind: str) -> str:
    if kind != "supervised":
        raise PydanticCustomError("unsupported_parameter", "only 'supervised' is supported")
    return kind


class Supervised(RequestBody):
    """Settings of the supervised method."""

    hyperparameters: Hyperparameters = Hyperparameters()


class Method(RequestBody):
    """OpenAI's method object."""

    type: Annotated[str, AfterValidator(_supervised_only)] = "supervised"
    supervised: Supervised | None = None


class RunWishes(RequestBody):
    """What both kinds of job can ask for, in our own top-level fields."""

    model: ModelName
    adapter: AdapterName | None = None
    mode: Mode | Auto = "auto"
    priority: Priority = "normal"
    seed: Seed | None = None
    lora: LoRAOptions | None = None
    trust_region: TrustRegionOptions | None = None
    rollback: RollbackOptions | None = None
    training: TrainingOptions | None = None
    metadata: Metadata | None = None

    def options(self, hyperparameters: Hyperparameters | None = None) -> JobOptions:
        """Return the wishes in the service's words."""
        return JobOptions(
            mode=self.mode,
            seed=self.seed,
            lora=self.lora or LoRAOptions(),
            trust_region=self.trust_region or TrustRegionOptions(),
            rollback=self.rollback or RollbackOptions(),
            training=self.training or TrainingOptions(),
            hyperparameters=hyperparameters or Hyperparameters(),
        )


class JobCreate(RunWishes):
    """POST /v1/fine_tuning/jobs."""

    training_file: FileId
    validation_file: FileId | None = None
    retention_file: FileId | None = None
    suffix: Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[^\x00]*$")] | None = None
    method: Method | None = None
    hyperparameters: Hyperparameters | None = None
    integrations: Annotated[list[Any] | None, only([])] = None

    def wanted_hyperparameters(self) -> Hyperparameters:
        """Return those of `method`, or the older top-level ones. Raises InvalidRequestError when both are given."""
        inner = self.method.supervised.hyperparameters if self.method and self.method.supervised else None
        if inner and self.hyperparameters:
            raise InvalidRequestError(
                "hyperparameters: also given in method.supervised; give one of them",
                code="invalid_value",
                param="hyperparameters",
            )
        return inner or self.hyperparameters or Hyperparameters()


class AdaptBody(RunWishes):
    """POST /v1/adapt: learn one text or one conversation; `wait` is in seconds."""

    text: Annotated[str, StringConstraints(min_length=1)] | None = None
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    wait: Annotated[float, Field(ge=0, le=600)] = 60.0


class EvaluateBody(RequestBody):
    """POST /v1/evaluate: measure the perplexity of a text, a conversation or a file."""

    model: ModelName
    text: Annotated[str, StringConstraints(min_length=1)] | None = None
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    file: FileId | None = None
