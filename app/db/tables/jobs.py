"""Jobs with their lease, events, checkpoints and training snapshots, and the idempotency keys that created them."""

from sqlalchemy import BigInteger, Boolean, Float, ForeignKey, Index, Integer, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables.base import Base, db_now


class Job(Base):
    """A fine-tune, an adapt or a merge. `lease_token` grows at every claim; only its holder may finish the job."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_tenant_id_id", "tenant_id", "id"),
        Index("ix_jobs_queue", "tenant_id", "status", "base_model", "priority", "id"),
        Index("ix_jobs_status_base_model_tenant_id", "status", "base_model", "tenant_id"),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    kind: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(String(16), server_default="queued")
    priority: Mapped[int] = mapped_column(Integer, server_default="1")
    """Of its tenant's jobs the lowest number comes first, then the oldest job; an index of PRIORITIES."""
    model: Mapped[str] = mapped_column(String(255))
    """The model name as the client gave it."""
    base_model: Mapped[str] = mapped_column(String(96))
    adapter_name: Mapped[str] = mapped_column(String(64))
    adapter_id: Mapped[str | None] = mapped_column(ForeignKey("adapters.id"))
    """The adapter to continue from, or, once published, the one it made."""
    parent_version_id: Mapped[str | None] = mapped_column(ForeignKey("adapter_versions.id"))
    training_file: Mapped[str | None] = mapped_column(ForeignKey("files.id"), index=True)
    validation_file: Mapped[str | None] = mapped_column(ForeignKey("files.id"), index=True)
    retention_file: Mapped[str | None] = mapped_column(ForeignKey("files.id"), index=True)
    training_blob_id: Mapped[str] = mapped_column(ForeignKey("blobs.id"), index=True)
    """What is read: the training file's JSONL, a line made of an adapt's text or messages, or a merge's adapter."""
    validation_blob_id: Mapped[str | None] = mapped_column(ForeignKey("blobs.id"), index=True)
    retention_blob_id: Mapped[str | None] = mapped_column(ForeignKey("blobs.id"), index=True)
    config: Mapped[dict[str, object]]
    """The effective JobConfig, or a merge's MergeConfig."""
    request: Mapped[dict[str, object]]
    """What the API echoes besides: suffix, metadata, method, hyperparameters."""
    trainable_parameters: Mapped[int] = mapped_column(BigInteger)
    optimizer_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[float] = mapped_column(Float(53), server_default=db_now())
    started_at: Mapped[float | None] = mapped_column(Float(53))
    finished_at: Mapped[float | None] = mapped_column(Float(53))
    cancel_requested: Mapped[bool] = mapped_column(Boolean, server_default="0")
    pause_requested: Mapped[bool] = mapped_column(Boolean, server_default="0")
    """Its tenant wants it paused; true while it is."""
    attempts: Mapped[int] = mapped_column(Integer, server_default="0")
    lease_token: Mapped[int] = mapped_column(Integer, server_default="0")
    lease_owner: Mapped[str | None] = mapped_column(String(64))
    lease_expires_at: Mapped[float | None] = mapped_column(Float(53))
    trained_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    """Reported so far; never falls, so that tokens trained again after a lost worker count once."""
    progress: Mapped[dict[str, object] | None]
    """The last StepMetrics."""
    result: Mapped[dict[str, object] | None]
    """TrainingResult, or a merge's MergeResult."""
    error: Mapped[dict[str, object] | None]
    """{code, message, param}."""
    result_version_id: Mapped[str | None] = mapped_column(String(40))


class JobEvent(Base):
    """One line of a job's history; metrics events carry StepMetrics as data."""

    __tablename__ = "job_events"
    __table_args__ = (Index("ix_job_events_job_id_id", "job_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    level: Mapped[str] = mapped_column(String(8))
    type: Mapped[str] = mapped_column(String(8))
    message: Mapped[str] = mapped_column(String(2000))
    data: Mapped[dict[str, object] | None]
    created_at: Mapped[float] = mapped_column(Float(53), server_default=db_now())


class JobCheckpoint(Base):
    """Adapter weights at the end of an epoch, servable as `ft:{base}:{tenant}:{adapter}:{job id}:step-{n}`."""

    __tablename__ = "job_checkpoints"
    __table_args__ = (UniqueConstraint("job_id", "step"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    step: Mapped[int] = mapped_column(Integer)
    weights_id: Mapped[str] = mapped_column(ForeignKey("blobs.id"), index=True)
    config: Mapped[dict[str, object]]
    metrics: Mapped[dict[str, object]]
    created_at: Mapped[float] = mapped_column(Float(53), server_default=db_now())


class JobSnapshot(Base):
    """Resume point of a running job: weights, moments, step, RNG and data cursor. The newest one counts."""

    __tablename__ = "job_snapshots"
    __table_args__ = (UniqueConstraint("job_id", "step"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    step: Mapped[int] = mapped_column(Integer)
    tensors_id: Mapped[str] = mapped_column(ForeignKey("blobs.id"), index=True)
    manifest: Mapped[dict[str, object]]
    created_at: Mapped[float] = mapped_column(Float(53), server_default=db_now())


class IdempotencyKey(Base):
    """What an `Idempotency-Key` created; the same key with another body is refused."""

    __tablename__ = "idempotency_keys"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    route: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request_sha256: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    created_at: Mapped[float] = mapped_column(Float(53), server_default=db_now())
