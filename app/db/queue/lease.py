"""The lease and its fence: the one conditional UPDATE that every write of a worker begins with."""

from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import update
from sqlalchemy.orm import Session

from app.contracts.merge import MergeConfig
from app.contracts.training import JobConfig, JobKind
from app.db.session import Database
from app.db.tables import Job, db_now


class StaleLeaseError(Exception):
    """The job has ended or another worker holds it: drop the work, write nothing, delete nothing."""


class Asked(NamedTuple):
    """What the job's tenant has asked its worker for: to end it, to put it aside."""

    cancel: bool
    pause: bool


@dataclass(frozen=True)
class Lease:
    """A worker's right to a job while `token` is the job's newest."""

    job_id: str
    tenant_id: str
    token: int
    worker_id: str


@dataclass(frozen=True)
class ClaimedJob:
    """What a worker needs to run a job. `attempts` counts this claim too, `weight` is the tenant's."""

    lease: Lease
    kind: JobKind
    base_model: str
    config: JobConfig
    adapter_name: str
    parent_version_id: str | None
    training_blob_id: str
    validation_blob_id: str | None
    retention_blob_id: str | None
    attempts: int
    weight: float


@dataclass(frozen=True)
class ClaimedMerge:
    """What a worker needs to merge a version into its base. `attempts` and `weight` are as in ClaimedJob."""

    lease: Lease
    config: MergeConfig
    adapter_name: str
    version_id: str
    attempts: int
    weight: float


def fence(session: Session, lease: Lease, **changes: object) -> Asked:
    """Apply `changes` to the job if the lease still holds and return what its tenant has asked for.

    Must come first in its transaction: the row stays locked, so nobody can claim the job before the commit.
    Raises StaleLeaseError when fenced out.
    """
    asked = session.execute(
        update(Job)
        .where(
            Job.id == lease.job_id,
            Job.tenant_id == lease.tenant_id,
            Job.lease_token == lease.token,
            Job.status == "running",
        )
        .values(**{"lease_owner": lease.worker_id, **changes})
        .returning(Job.cancel_requested, Job.pause_requested)
        .execution_options(synchronize_session=False)
    ).first()
    if asked is None:
        raise StaleLeaseError(f"job {lease.job_id}: lease {lease.token} of worker {lease.worker_id} is no longer valid")
    return Asked(*asked)


def heartbeat(db: Database, lease: Lease, lease_seconds: float) -> Asked:
    """Extend the lease to `lease_seconds` from now; return what the tenant has asked for. Raises StaleLeaseError."""
    with db.write() as session:
        return fence(session, lease, lease_expires_at=db_now() + lease_seconds)
