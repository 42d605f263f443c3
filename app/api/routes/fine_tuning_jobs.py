"""/v1/fine_tuning/jobs."""

from fastapi import APIRouter, Request

from app.api.deps import After, DatabaseDep, IdempotencyKey, Limit, RedisDep, ResourceId, SettingsDep, TenantDep
from app.api.job_answers import job_object, job_objects
from app.api.schemas.common import Page, page
from app.api.schemas.fine_tuning import JobCreate
from app.api.schemas.jobs import CheckpointObject, EventObject, JobObject
from app.api.schemas.metadata_filter import metadata_filter
from app.services import jobs
from app.services.fine_tuning import plan_fine_tune

router = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["fine-tuning"])


@router.post("")
def create_job(
    *,
    body: JobCreate,
    database: DatabaseDep,
    redis: RedisDep,
    tenant_id: TenantDep,
    settings: SettingsDep,
    idempotency_key: IdempotencyKey = None,
) -> JobObject:
    """Queue a fine-tune. The same `Idempotency-Key` with the same body returns the job that exists already."""
    request = jobs.once("fine_tuning.jobs", idempotency_key, body.model_dump())
    hyperparameters = body.wanted_hyperparameters()
    with database.read() as session:
        if earlier := jobs.find_earlier(session, tenant_id, request):
            return job_object(session, settings, earlier)
        plan = plan_fine_tune(
            session,
            tenant_id,
            model=body.model,
            training_file=body.training_file,
            validation_file=body.validation_file,
            retention_file=body.retention_file,
            adapter=body.adapter,
            suffix=body.suffix,
            options=body.options(hyperparameters),
            request={
                "metadata": body.metadata,
                "suffix": body.suffix,
                "learning_rate_multiplier": hyperparameters.learning_rate_multiplier,
            },
            priority=body.priority,
            max_checkpoint_bytes=settings.max_checkpoint_bytes,
        )
    with database.write() as session:
        job = jobs.enqueue(session, tenant_id, plan, request, max_queued=settings.max_queued_jobs)
    jobs.wake(redis, job)
    with database.read() as session:
        return job_object(session, settings, job)


@router.get("")
def list_jobs(
    *,
    request: Request,
    database: DatabaseDep,
    tenant_id: TenantDep,
    settings: SettingsDep,
    after: After = None,
    limit: Limit = 20,
) -> Page[JobObject]:
    """List jobs of every kind, newest first; `metadata[key]=value` filters, `metadata=null` finds those without any."""
    wanted = metadata_filter(request.query_params)
    with database.read() as session:
        rows, has_more = jobs.list_jobs(session, tenant_id, metadata=wanted, after=after, limit=limit)
        data = job_objects(session, settings, tenant_id, rows)
    return page(data, [row.id for row in rows], has_more)


@router.get("/{job_id}")
def retrieve_job(job_id: ResourceId, database: DatabaseDep, tenant_id: TenantDep, settings: SettingsDep) -> JobObject:
    """Return one job."""
    with database.read() as session:
        return job_object(session, settings, jobs.get_job(session, tenant_id, job_id))


@router.post("/{job_id}/cancel")
def cancel_job(job_id: ResourceId, database: DatabaseDep, tenant_id: TenantDep, settings: SettingsDep) -> JobObject:
    """Cancel a job: one that waits at once, a running one as soon as its worker hears of it."""
    with database.write() as session:
        job = jobs.cancel_job(session, tenant_id, job_id)
    with database.read() as session:
        return job_object(session, settings, job)


@router.post("/{job_id}/pause")
def pause_job(job_id: ResourceId, database: DatabaseDep, tenant_id: TenantDep, settings: SettingsDep) -> JobObject:
    """Pause a job: a queued one at once, a running one after its current step. It keeps what it has trained."""
    with database.write() as session:
        job = jobs.pause_job(session, tenant_id, job_id)
    with database.read() as session:
        return job_object(session, settings, job)


@router.post("/{job_id}/resume")
def resume_job(
    job_id: ResourceId, database: DatabaseDep, redis: RedisDep, tenant_id: TenantDep, settings: SettingsDep
) -> JobObject:
    """Queue a paused job again; it goes on from where it was paused."""
    with database.write() as session:
        job = jobs.resume_job(session, tenant_id, job_id)
    if job.status == "queued":
        jobs.wake(redis, job)
    with database.read() as session:
        return job_object(session, settings, job)


@router.get("/{job_id}/events")
def list_events(
    job_id: ResourceId, database: DatabaseDep, tenant_id: TenantDep, after: After = None, limit: Limit = 20
) -> Page[EventObject]:
    """List a job's events, newest first."""
    with database.read() as session:
        rows, has_more = jobs.list_events(session, tenant_id, job_id, after=after, limit=limit)
    return page([EventObject.of(row) for row in rows], [row.id for row in rows], has_more)


@router.get("/{job_id}/checkpoints")
def list_checkpoints(
    job_id: ResourceId, database: DatabaseDep, tenant_id: TenantDep, after: After = None, limit: Limit = 10
) -> Page[CheckpointObject]:
    """List a job's checkpoints, newest first."""
    with database.read() as session:
        job, rows, has_more = jobs.list_checkpoints(session, tenant_id, job_id, after=after, limit=limit)
    return page([CheckpointObject.of(job, row) for row in rows], [row.id for row in rows], has_more)
