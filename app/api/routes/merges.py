"""/v1/adapters/{name}/versions/{version}/merge."""

from fastapi import APIRouter

from app.api.deps import DatabaseDep, IdempotencyKey, RedisDep, ResourceId, SettingsDep, TenantDep, VersionNumber
from app.api.job_answers import job_object
from app.api.schemas.adapters import MergeBody
from app.api.schemas.jobs import JobObject
from app.services import jobs
from app.services.health import MISSED_HEARTBEATS
from app.services.merges import enqueue_merge, plan_merge

router = APIRouter(prefix="/v1/adapters", tags=["adapters"])


@router.post("/{name}/versions/{version}/merge")
def merge_version(
    *,
    name: ResourceId,
    version: VersionNumber,
    body: MergeBody,
    database: DatabaseDep,
    redis: RedisDep,
    tenant_id: TenantDep,
    settings: SettingsDep,
    idempotency_key: IdempotencyKey = None,
) -> JobObject:
    """Queue a job that folds the version into its base; its file is in `result_files` when it has succeeded."""
    asked = {"name": name, "version": version, **body.model_dump()}
    request = jobs.once("adapters.merge", idempotency_key, asked)
    with database.read() as session:
        if earlier := jobs.find_earlier(session, tenant_id, request):
            return job_object(session, settings, earlier)
        plan = plan_merge(
            session,
            tenant_id,
            name=name,
            version=version,
            form=body.format,
            request={"metadata": body.metadata},
            max_bytes=settings.max_checkpoint_bytes,
            alive_seconds=MISSED_HEARTBEATS * settings.heartbeat_seconds,
        )
    with database.write() as session:
        job = enqueue_merge(session, tenant_id, plan, request, max_queued=settings.max_queued_jobs)
    jobs.wake(redis, job)
    with database.read() as session:
        return job_object(session, settings, job)
