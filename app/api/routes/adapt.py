"""/v1/adapt and /v1/evaluate."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from app.api.deps import IdempotencyKey, Resources, ResourcesDep, TenantDep
from app.api.job_answers import job_object
from app.api.schemas.fine_tuning import AdaptBody, EvaluateBody
from app.api.schemas.jobs import AdaptResult
from app.api.streaming import unless_disconnected
from app.contracts.training import TERMINAL_STATUSES
from app.core.errors import TrainingFailedError
from app.db.tables import Job
from app.services import jobs
from app.services.adapt import plan_adapt, wait_for_end
from app.services.evaluation import PreparedEvaluation, evaluate, prepare_evaluation

router = APIRouter(prefix="/v1", tags=["adapt"])


@router.post("/adapt", response_model=AdaptResult)
async def create_adapt(
    body: AdaptBody,
    request: Request,
    held: ResourcesDep,
    tenant_id: TenantDep,
    idempotency_key: IdempotencyKey = None,
) -> JSONResponse:
    """Learn a text or a conversation and say how it went; after `wait` seconds, 202 with the job that goes on."""
    job = await run_in_threadpool(_queue, held, tenant_id, body, idempotency_key)
    job = await unless_disconnected(request, wait_for_end(held.database, held.async_redis, job, body.wait))
    content, status = await run_in_threadpool(_answer, held, job)
    return JSONResponse(content, status_code=status)


@router.post("/evaluate")
async def create_evaluation(
    body: EvaluateBody, request: Request, held: ResourcesDep, tenant_id: TenantDep
) -> dict[str, Any]:
    """Measure perplexity. Changes nothing."""
    prepared = await run_in_threadpool(_prepare_evaluation, held, tenant_id, body)
    settings = held.settings
    work = evaluate(held.async_redis, prepared, silence=settings.request_timeout, limit=settings.max_queued_requests)
    measured = await unless_disconnected(request, work)
    return {
        "object": "evaluation",
        "model": prepared.model,
        "perplexity": measured.perplexity,
        "loss": measured.loss,
        "tokens": measured.tokens,
    }


def _queue(held: Resources, tenant_id: str, body: AdaptBody, idempotency_key: str | None) -> Job:
    request = jobs.once("adapt", idempotency_key, body.model_dump(exclude={"wait"}))
    with held.database.read() as session:
        if earlier := jobs.find_earlier(session, tenant_id, request):
            return earlier
        plan = plan_adapt(
            session,
            tenant_id,
            model=body.model,
            adapter=body.adapter,
            text=body.text,
            messages=body.messages,
            options=body.options(),
            request={"metadata": body.metadata},
            priority=body.priority,
            max_checkpoint_bytes=held.settings.max_checkpoint_bytes,
        )
    with held.database.write() as session:
        job = jobs.enqueue(session, tenant_id, plan, request, max_queued=held.settings.max_queued_jobs)
    jobs.wake(held.redis, job)
    return job


def _answer(held: Resources, job: Job) -> tuple[dict[str, Any], int]:
    with held.database.read() as session:
        if job.status not in TERMINAL_STATUSES:
            return job_object(session, held.settings, job).model_dump(), 202
        if job.status != "succeeded":
            error = job.error or {}
            message = str(error.get("message") or f"The job was {job.status}")
            raise TrainingFailedError(f"{job.id}: {message}", code=str(error.get("code") or job.status))
        return AdaptResult.of(job, jobs.published_version(session, job)).model_dump(), 200


def _prepare_evaluation(held: Resources, tenant_id: str, body: EvaluateBody) -> PreparedEvaluation:
    with held.database.read() as session:
        return prepare_evaluation(
            session, tenant_id, body.model, text=body.text, messages=body.messages, file=body.file
        )
