"""Makes rows and reads them back, for the database tests."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.contracts.training import (
    JobConfig,
    LoRAConfig,
    RollbackConfig,
    StepMetrics,
    TrainingConfig,
    TrainingResult,
    TrustRegionConfig,
)
from app.db import queue
from app.db.blobs import write_blob
from app.db.repositories import jobs
from app.db.session import Database
from app.db.tables import Base, Job, db_now

BASE = "smol"
CONFIG = JobConfig(
    mode="lora",
    seed=7,
    lora=LoRAConfig(rank=16, alpha=32, targets=["q_proj"], seed=7),
    trust_region=TrustRegionConfig(max_delta=0.05),
    rollback=RollbackConfig(enabled=True, tolerance=1.25),
    training=TrainingConfig(
        epochs=1,
        batch_size=4,
        learning_rate=1e-3,
        seq_len=128,
        max_grad_norm=1.0,
        weight_decay=0.0,
        beta1=0.9,
        beta2=0.999,
        eps=1e-8,
        gradient_accumulation=1,
        warmup_steps=0,
    ),
)
RESULT = TrainingResult(
    losses=[2.0, 1.0],
    grad_norm=0.5,
    perplexity_before=9.0,
    perplexity_after=3.0,
    gate_data="held_out",
    rolled_back=False,
    rollback_reason=None,
    steps=12,
    trained_tokens=900,
    duration_ms=1234,
)
METRICS = StepMetrics(
    step=3,
    total_steps=12,
    epoch=0,
    loss=1.5,
    grad_norm=0.4,
    learning_rate=1e-3,
    clamped=0.0,
    skipped=False,
    tokens=300,
    tokens_per_second=99.0,
    eta_seconds=6.0,
)
VERSION = queue.NewVersion(weights=b"weights", config={"r": 16}, metrics={"steps": 12})


def add_job(session: Session, tenant_id: str, **changes: Any) -> Job:
    """Queue a job; `changes` override what it is made with."""
    values: dict[str, Any] = {
        "kind": "fine_tune",
        "model": BASE,
        "base_model": BASE,
        "adapter_name": "support",
        "training_blob_id": None,
        "config": CONFIG,
        "request": {"suffix": "support"},
        "trainable_parameters": 10_000_000_000,
        "optimizer_bytes": 80_000_000_000,
        **changes,
    }
    if values["training_blob_id"] is None:
        values["training_blob_id"] = write_blob(session, tenant_id, b'{"text": "hello"}\n').id
    return jobs.create(session, tenant_id, **values)


def claim(
    database: Database, worker_id: str = "worker-1", **changes: Any
) -> queue.ClaimedJob | queue.ClaimedMerge | None:
    """Claim the next job with usual settings."""
    values: dict[str, Any] = {"base_model": BASE, "lease_seconds": 30.0, "max_attempts": 3, **changes}
    return queue.claim(database, worker_id=worker_id, **values)


def claim_one(database: Database, worker_id: str = "worker-1", **changes: Any) -> queue.ClaimedJob:
    """Claim a job that must be there."""
    claimed = claim(database, worker_id, **changes)
    assert isinstance(claimed, queue.ClaimedJob)
    return claimed


def expire_lease(database: Database, job_id: str) -> None:
    """Let the job's lease have run out a second ago, by the database's clock."""
    with database.write() as session:
        job = session.get_one(Job, job_id)
        job.lease_expires_at = session.scalar(select(db_now() - 1.0))


def read_job(database: Database, job_id: str) -> Job:
    """Return the job as committed."""
    with database.read() as session:
        return session.get_one(Job, job_id)


def dump(database: Database, *without: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of every table, to compare what a transaction left behind."""
    with database.read() as session:
        return {
            table.name: sorted((tuple(row) for row in session.execute(select(table))), key=repr)
            for table in Base.metadata.sorted_tables
            if table.name not in without
        }
