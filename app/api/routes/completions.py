"""/v1/chat/completions and /v1/completions."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from app.api.deps import Resources, ResourcesDep, TenantDep
from app.api.schemas.completion_answers import ChatAnswer, CompletionAnswer
from app.api.schemas.completions import ChatBody, CompletionBody
from app.api.streaming import StreamedAnswer, event_stream, unless_disconnected
from app.services.generation import Choice, Usage, generate, start_stream
from app.services.prompts import PreparedGeneration, prepare_chat, prepare_completions

router = APIRouter(prefix="/v1", tags=["completions"])


@router.post("/chat/completions", response_model=None)
async def create_chat_completion(
    body: ChatBody, request: Request, held: ResourcesDep, tenant_id: TenantDep
) -> Response | dict[str, Any]:
    """Continue a conversation with the assistant's next turn."""
    prepared = await run_in_threadpool(_prepare_chat, held, tenant_id, body)
    answer = ChatAnswer(prepared.model, usage_wanted=body.include_usage())
    if body.stream:
        return await _streamed(request, held, prepared, answer)
    choices, usage = await _finished(request, held, prepared)
    return answer.whole(choices, usage, logprobs=bool(body.logprobs))


@router.post("/completions", response_model=None)
async def create_completion(
    body: CompletionBody, request: Request, held: ResourcesDep, tenant_id: TenantDep
) -> Response | dict[str, Any]:
    """Continue one or several prompts."""
    prepared = await run_in_threadpool(_prepare_completions, held, tenant_id, body)
    answer = CompletionAnswer(
        model=prepared.model,
        n=body.n or 1,
        prompts=prepared.prompt_texts,
        logprobs=body.logprobs is not None,
        usage_wanted=body.include_usage(),
    )
    if body.stream:
        return await _streamed(request, held, prepared, answer)
    return answer.whole(*await _finished(request, held, prepared))


async def _finished(request: Request, held: Resources, prepared: PreparedGeneration) -> tuple[list[Choice], Usage]:
    settings = held.settings
    work = generate(held.async_redis, prepared, silence=settings.request_timeout, limit=settings.max_queued_requests)
    return await unless_disconnected(request, work)


async def _streamed(
    request: Request, held: Resources, prepared: PreparedGeneration, answer: StreamedAnswer
) -> Response:
    settings, usage = held.settings, Usage()
    work = start_stream(
        held.async_redis, prepared, usage, silence=settings.request_timeout, limit=settings.max_queued_requests
    )
    deltas = await unless_disconnected(request, work)
    choices = sum(generation.sampling.n for generation in prepared.requests)
    return event_stream(answer, deltas, usage, choices=choices)


def _prepare_chat(held: Resources, tenant_id: str, body: ChatBody) -> PreparedGeneration:
    messages = [{"role": message.role, "content": message.content} for message in body.messages]
    with held.database.read() as session:
        return prepare_chat(session, tenant_id, body.model, messages, body.sampling())


def _prepare_completions(held: Resources, tenant_id: str, body: CompletionBody) -> PreparedGeneration:
    with held.database.read() as session:
        return prepare_completions(session, tenant_id, body.model, body.prompt, body.sampling(), echo=bool(body.echo))
