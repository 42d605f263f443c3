"""/v1/embeddings."""

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from app.api.deps import Resources, ResourcesDep, TenantDep
from app.api.schemas.embeddings import EmbeddingsBody, embeddings_answer
from app.api.streaming import unless_disconnected
from app.services.embeddings import Embeddings, PreparedEmbeddings, embed, prepare_embeddings

router = APIRouter(prefix="/v1", tags=["embeddings"])


@router.post("/embeddings", response_model=None)
async def create_embeddings(
    body: EmbeddingsBody, request: Request, held: ResourcesDep, tenant_id: TenantDep
) -> JSONResponse:
    """Embed one or several inputs: the mean of the final hidden states, scaled to length 1."""
    prepared = await run_in_threadpool(_prepare, held, tenant_id, body)
    settings = held.settings
    work = embed(held.async_redis, prepared, silence=settings.request_timeout, limit=settings.max_queued_requests)
    made = await unless_disconnected(request, work)
    return await run_in_threadpool(_answer, prepared.model, made, body.encoding_format == "base64")


def _prepare(held: Resources, tenant_id: str, body: EmbeddingsBody) -> PreparedEmbeddings:
    with held.database.read() as session:
        return prepare_embeddings(session, tenant_id, body.model, body.input)


def _answer(model: str, made: Embeddings, as_base64: bool) -> JSONResponse:
    return JSONResponse(embeddings_answer(model, made, as_base64=as_base64))
