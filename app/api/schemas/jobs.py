"""Wire forms of jobs: OpenAI's objects, and what only we know beside them."""

import time
from typing import Any, Literal

from pydantic import BaseModel

from app.contracts.merge import MergeConfig, MergeResult
from app.contracts.training import PRIORITIES, JobConfig, Priority
from app.db.tables import AdapterVersion, Job, JobCheckpoint, JobEvent
from app.services.model_names import checkpoint_name, version_name
from app.services.queue_places import QueuePlace, Reason


class QueueObject(BaseModel):
    """What a job waits for; `position` is how many claims come before its own."""

    position: int | None
    reason: Reason


class JobObject(BaseModel):
    """A job of any kind. `lora`, `trust_region`, `rollback` and `training` show what is in effect.

    `merge` shows what a merge was asked for. What means nothing for a merge is null; its file is in `result_files`.
    """

    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    kind: str
    status: str
    queue: QueueObject | None
    """None for a job that does not wait."""
    model: str
    fine_tuned_model: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    estimated_finish: int | None
    error: dict[str, Any] | None
    hyperparameters: dict[str, Any] = {}
    method: dict[str, Any] | None = None
    result_files: list[str] = []
    trained_tokens: int | None
    training_file: str | None
    validation_file: str | None
    retention_file: str | None
    seed: int | None = None
    organization_id: str
    integrations: list[Any] = []
    metadata: dict[str, str] | None
    suffix: str | None
    base_model: str
    adapter: str
    version: int | None
    priority: Priority
    mode: str | None = None
    lora: dict[str, Any] | None = None
    trust_region: dict[str, Any] | None = None
    rollback: dict[str, Any] | None = None
    training: dict[str, Any] | None = None
    merge: dict[str, Any] | None = None
    trainable_parameters: int
    optimizer_state_bytes: int
    progress: dict[str, Any] | None
    result: dict[str, Any] | None

    @classmethod
    def of(cls, job: Job, version: AdapterVersion | None, place: QueuePlace | None) -> "JobObject":
        """Return the wire form of a job, of the version it made and of its place in the queue."""
        return cls(
            id=job.id,
            kind=job.kind,
            status=job.status,
            queue=place and QueueObject(position=place.position, reason=place.reason),
            model=job.model,
            fine_tuned_model=version and version_name(job.base_model, job.tenant_id, job.adapter_name, version.version),
            created_at=int(job.created_at),
            started_at=_seconds(job.started_at),
            finished_at=_seconds(job.finished_at),
            estimated_finish=_estimated_finish(job),
            error=job.error,
            trained_tokens=job.result and job.result.get("trained_tokens"),
            training_file=job.training_file,
            validation_file=job.validation_file,
            retention_file=job.retention_file,
            organization_id=job.tenant_id,
            metadata=job.request.get("metadata"),
            suffix=job.request.get("suffix"),
            base_model=job.base_model,
            adapter=job.adapter_name,
            version=version and version.version,
            priority=PRIORITIES[job.priority],
            trainable_parameters=job.trainable_parameters,
            optimizer_state_bytes=job.optimizer_bytes,
            progress=job.progress,
            result=job.result,
            **(_merge_fields(job) if job.kind == "merge" else _training_fields(job)),
        )


class EventObject(BaseModel):
    """One line of a job's history."""

    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: str
    type: str
    message: str
    data: dict[str, Any] | None

    @classmethod
    def of(cls, event: JobEvent) -> "EventObject":
        """Return the wire form of a row."""
        return cls(
            id=event.id,
            created_at=int(event.created_at),
            level=event.level,
            type=event.type,
            message=event.message,
            data=event.data,
        )


class CheckpointObject(BaseModel):
    """Adapter weights at the end of an epoch, servable under their own name."""

    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    step_number: int
    metrics: dict[str, Any]

    @classmethod
    def of(cls, job: Job, checkpoint: JobCheckpoint) -> "CheckpointObject":
        """Return the wire form of a row."""
        return cls(
            id=checkpoint.id,
            created_at=int(checkpoint.created_at),
            fine_tuned_model_checkpoint=checkpoint_name(
                job.base_model, job.tenant_id, job.adapter_name, job.id, checkpoint.step
            ),
            fine_tuning_job_id=job.id,
            step_number=checkpoint.step,
            metrics={"step": checkpoint.step, **checkpoint.metrics},
        )


class AdaptResult(BaseModel):
    """How an adapt ended. `version` is None after a rollback: what is served is unchanged."""

    id: str
    object: Literal["adapt.result"] = "adapt.result"
    adapter: str
    model: str | None
    """The `ft:` name of the new version."""
    version: int | None
    losses: list[float | None]
    grad_norm: float | None
    perplexity_before: float | None
    perplexity_after: float | None
    rolled_back: bool
    rollback_reason: str | None
    duration_ms: int

    @classmethod
    def of(cls, job: Job, version: AdapterVersion | None) -> "AdaptResult":
        """Return the answer of a succeeded adapt."""
        shown = ("losses", "grad_norm", "perplexity_before", "perplexity_after", "rolled_back", "rollback_reason")
        result = job.result or {}
        return cls.model_validate(
            {name: result.get(name) for name in (*shown, "duration_ms")}
            | {
                "id": job.id,
                "adapter": job.adapter_name,
                "model": version and version_name(job.base_model, job.tenant_id, job.adapter_name, version.version),
                "version": version and version.version,
            }
        )


def _training_fields(job: Job) -> dict[str, Any]:
    config = JobConfig.model_validate(job.config)
    hyperparameters = {
        "n_epochs": config.training.epochs,
        "batch_size": config.training.batch_size,
        "learning_rate_multiplier": job.request.get("learning_rate_multiplier", "auto"),
    }
    return {
        "hyperparameters": hyperparameters,
        "method": {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}},
        "seed": config.seed,
        "mode": config.mode,
        "lora": config.lora and config.lora.model_dump(),
        "trust_region": config.trust_region.model_dump(),
        "rollback": config.rollback.model_dump(),
        "training": config.training.model_dump(),
    }


def _merge_fields(job: Job) -> dict[str, Any]:
    config = MergeConfig.model_validate(job.config)
    files = [MergeResult.model_validate(job.result).file] if job.result else []
    return {"merge": {"format": config.format, "version": config.version}, "result_files": files}


def _seconds(moment: float | None) -> int | None:
    return None if moment is None else int(moment)


def _estimated_finish(job: Job) -> int | None:
    if job.status != "running" or not job.progress:
        return None
    eta = job.progress.get("eta_seconds")
    return int(time.time() + eta) if isinstance(eta, int | float) else None
