"""Jobs of every kind once they are planned: queued once, read, cancelled, paused and resumed."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import structlog
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy.orm import Session

from app.bus.wakeups import wake_workers
from app.contracts.training import TERMINAL_STATUSES, JobConfig, JobKind, Priority
from app.core.errors import ConflictError, InvalidRequestError, QuotaError, not_found
from app.db.blobs import write_blob
from app.db.queue import drop_leftovers
from app.db.repositories import adapters, idempotency, jobs, pauses, tenants
from app.db.repositories.idempotency import IdempotencyConflictError
from app.db.session import lock_name
from app.db.tables import AdapterVersion, Job, JobCheckpoint, JobEvent
from app.services.files import get_file
from app.services.job_config import optimizer_bytes
from app.services.start_point import StartPoint

QUOTA_RETRY_SECONDS = 30


@dataclass(frozen=True)
class JobPlan:
    """A job that has passed every check, not yet queued. Its data are files, or `line`, one JSONL line."""

    kind: JobKind
    model: str
    start: StartPoint
    config: JobConfig
    trainable_parameters: int
    request: Mapping[str, object]
    training_file: str | None = None
    validation_file: str | None = None
    retention_file: str | None = None
    line: bytes | None = None
    priority: Priority = "normal"


@dataclass(frozen=True)
class Once:
    """An `Idempotency-Key` with what it was sent for."""

    route: str
    key: str
    request_sha256: str


def once(route: str, key: str | None, body: Mapping[str, object]) -> Once | None:
    """Return the idempotency of a request, if it carries a key."""
    if key is None:
        return None
    return Once(route, key, idempotency.request_sha256(json.dumps(body, sort_keys=True).encode()))


def find_earlier(session: Session, tenant_id: str, request: Once | None) -> Job | None:
    """Return the job that the same request made before. Raises ConflictError for the same key with another body."""
    if request is None:
        return None
    try:
        job_id = idempotency.find(
            session, tenant_id, route=request.route, key=request.key, request_sha256=request.request_sha256
        )
    except IdempotencyConflictError as error:
        raise ConflictError(
            "Idempotency-Key: was used before with another request body",
            code="idempotency_key_reused",
            param="Idempotency-Key",
        ) from error
    return (job_id and jobs.get(session, tenant_id, job_id)) or None


def enqueue(session: Session, tenant_id: str, plan: JobPlan, request: Once | None, *, max_queued: int) -> Job:
    """Queue the planned job, or return the one that the same request made meanwhile. Raises QuotaError."""

    def create() -> Job:
        return jobs.create(
            session,
            tenant_id,
            kind=plan.kind,
            priority=plan.priority,
            model=plan.model,
            base_model=plan.start.info.id,
            adapter_name=plan.start.adapter_name,
            adapter_id=plan.start.adapter_id,
            parent_version_id=plan.start.version.id if plan.start.version else None,
            training_file=plan.training_file,
            validation_file=plan.validation_file,
            retention_file=plan.retention_file,
            training_blob_id=_training_blob(session, tenant_id, plan),
            validation_blob_id=_blob_of(session, tenant_id, plan.validation_file, "validation_file"),
            retention_blob_id=_blob_of(session, tenant_id, plan.retention_file, "retention_file"),
            config=plan.config,
            request=plan.request,
            trainable_parameters=plan.trainable_parameters,
            optimizer_bytes=optimizer_bytes(plan.trainable_parameters, plan.config),
        )

    return queue_once(session, tenant_id, create, request, max_queued=max_queued)


def queue_once(
    session: Session, tenant_id: str, create: Callable[[], Job], request: Once | None, *, max_queued: int
) -> Job:
    """Queue the job that `create` makes, or return the one that the same request made before.

    A limit of the tenant's own comes before `max_queued`. Raises QuotaError.
    """
    lock_name(session, "queue a job", tenant_id)
    if earlier := find_earlier(session, tenant_id, request):
        return earlier
    tenant = tenants.get(session, tenant_id)
    limit = max_queued if tenant is None or tenant.max_queued_jobs is None else tenant.max_queued_jobs
    if jobs.count(session, tenant_id, "queued", "paused") >= limit:
        raise QuotaError(
            f"You have {limit} queued and paused jobs, which is the limit; wait for some to end or cancel them",
            code="too_many_queued_jobs",
            retry_after=QUOTA_RETRY_SECONDS,
        )
    job = create()
    if request:
        idempotency.record(
            session,
            tenant_id,
            route=request.route,
            key=request.key,
            request_sha256=request.request_sha256,
            job_id=job.id,
        )
    return job


def wake(client: Redis, job: Job) -> None:
    """Tell the workers about a queued job. A lost wake-up only costs one poll, so an outage of Redis is no error."""
    try:
        wake_workers(client, job.base_model)
    except RedisError as error:
        structlog.get_logger().warning("wake-up lost", job_id=job.id, error=str(error))


def get_job(session: Session, tenant_id: str, job_id: str) -> Job:
    """Return a job. Raises NotFoundError."""
    job = jobs.get(session, tenant_id, job_id)
    if job is None:
        raise not_found("job", job_id)
    return job


def list_jobs(
    session: Session,
    tenant_id: str,
    *,
    metadata: Mapping[str, str] | Literal["none"] | None,
    after: str | None,
    limit: int,
) -> tuple[Sequence[Job], bool]:
    """Return a page of jobs of every kind, newest first, and whether more follow."""
    return jobs.list(session, tenant_id, metadata=metadata, after=after, limit=limit)


def published_version(session: Session, job: Job) -> AdapterVersion | None:
    """Return the version that a job made, if it made one."""
    if job.result_version_id is None:
        return None
    return adapters.get_version_by_id(session, job.tenant_id, job.result_version_id)


def cancel_job(session: Session, tenant_id: str, job_id: str) -> Job:
    """Cancel a waiting job at once and a running one soon. Raises NotFoundError or InvalidRequestError."""
    before = get_job(session, tenant_id, job_id)
    if before.status in TERMINAL_STATUSES - {"cancelled"}:
        raise InvalidRequestError(f"Job {job_id} has {before.status} and cannot be cancelled", code="job_ended")
    job = jobs.request_cancel(session, tenant_id, job_id) or before
    if job.status == "cancelled":
        drop_leftovers(session, tenant_id, job_id)
    return job


def pause_job(session: Session, tenant_id: str, job_id: str) -> Job:
    """Pause a queued job at once and a running one soon; a paused one stays so. Raises as `_going_on` does."""
    before = _going_on(session, tenant_id, job_id, "paused")
    return pauses.request(session, tenant_id, job_id) or before


def resume_job(session: Session, tenant_id: str, job_id: str) -> Job:
    """Queue a paused job again; one that waits or runs goes on as it is. Raises as `_going_on` does."""
    before = _going_on(session, tenant_id, job_id, "resumed")
    return pauses.resume(session, tenant_id, job_id) or before


def list_events(
    session: Session, tenant_id: str, job_id: str, *, after: str | None, limit: int
) -> tuple[Sequence[JobEvent], bool]:
    """Return a page of a job's events, newest first. Raises NotFoundError."""
    return jobs.events(session, tenant_id, get_job(session, tenant_id, job_id).id, after=after, limit=limit)


def list_checkpoints(
    session: Session, tenant_id: str, job_id: str, *, after: str | None, limit: int
) -> tuple[Job, Sequence[JobCheckpoint], bool]:
    """Return the job and a page of its checkpoints, newest first. Raises NotFoundError."""
    job = get_job(session, tenant_id, job_id)
    rows, has_more = jobs.checkpoints(session, tenant_id, job.id, after=after, limit=limit)
    return job, rows, has_more


def _going_on(session: Session, tenant_id: str, job_id: str, what: str) -> Job:
    """Return a job that has not ended.

    Raises NotFoundError, InvalidRequestError when it has, and ConflictError while it is being cancelled.
    """
    job = get_job(session, tenant_id, job_id)
    if job.status in TERMINAL_STATUSES:
        ended = "been cancelled" if job.status == "cancelled" else job.status
        raise InvalidRequestError(f"Job {job_id} has {ended} and cannot be {what}", code="job_ended")
    if job.cancel_requested:
        raise ConflictError(f"Job {job_id} is being cancelled and cannot be {what}", code="job_is_being_cancelled")
    return job


def _training_blob(session: Session, tenant_id: str, plan: JobPlan) -> str:
    if plan.line is not None:
        return write_blob(session, tenant_id, plan.line).id
    blob_id = _blob_of(session, tenant_id, plan.training_file, "training_file")
    assert blob_id is not None, "a plan has a file or a line"
    return blob_id


def _blob_of(session: Session, tenant_id: str, file_id: str | None, param: str) -> str | None:
    return None if file_id is None else get_file(session, tenant_id, file_id, param=param, hold=True).blob_id
