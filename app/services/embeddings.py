"""Embeddings of texts or token ids: one request to a worker, its vectors in the order of the inputs.

Knows vectors as float32 bytes; how a client wants them written is the edge's.
"""

import math
from array import array
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from redis.asyncio import Redis as AsyncRedis
from sqlalchemy.orm import Session

from app.contracts.base_models import BaseModelInfo
from app.contracts.inference import DoneEvent, EmbedEvent, EmbedRequest
from app.core.errors import InvalidRequestError, UnavailableError
from app.core.ids import new_id
from app.services.inference import RETRY_SECONDS, events, submit
from app.services.model_names import resolve_model
from app.services.token_ids import known, within_context
from app.text.tokenizer import tokenizer_for

MAX_TOKENS = 131_072
"""Of all inputs together: a worker reads them slice by slice, but the request holds its place all the while."""


@dataclass(frozen=True)
class PreparedEmbeddings:
    """A request ready to be submitted, and the pinned name of the model that will embed."""

    model: str
    request: EmbedRequest


@dataclass(frozen=True)
class Embeddings:
    """A float32 vector for each input, in order, and the tokens of all inputs."""

    vectors: "list[array[float]]"
    prompt_tokens: int


def prepare_embeddings(
    session: Session, tenant_id: str, model: str, inputs: Sequence[str | list[int]]
) -> PreparedEmbeddings:
    """Return the request. Raises ServiceError naming the input at fault."""
    resolved = resolve_model(session, tenant_id, model)
    sequences, total = [], 0
    for position, given in enumerate(inputs):
        param = "input" if len(inputs) == 1 else f"input[{position}]"
        sequences.append(_sequence(resolved.info, given, param))
        total += len(sequences[-1])
        if total > MAX_TOKENS:
            raise InvalidRequestError(
                f"input: more than {MAX_TOKENS} tokens by input[{position}]; send fewer at once",
                code="input_too_long",
                param="input",
            )
    request = EmbedRequest(id=new_id("req"), base_model=resolved.info.id, adapter=resolved.ref, sequences=sequences)
    return PreparedEmbeddings(resolved.name, request)


async def embed(client: AsyncRedis, prepared: PreparedEmbeddings, *, silence: float, limit: int) -> Embeddings:
    """Submit the request and return the worker's vectors. Raises ServiceError."""
    await submit(client, [prepared.request], limit=limit)
    vectors: dict[int, array[float]] = {}
    async with aclosing(events(client, prepared.request.id, silence=silence)) as stream:
        async for event in stream:
            if isinstance(event, EmbedEvent):
                vectors[event.index] = _finite(event.vector, prepared.model)
            if isinstance(event, DoneEvent) and len(vectors) == len(prepared.request.sequences):
                return Embeddings([vectors[index] for index in sorted(vectors)], event.prompt_tokens)
    raise UnavailableError("The worker ended without a result", code="no_result", retry_after=RETRY_SECONDS)


def _sequence(info: BaseModelInfo, given: str | list[int], param: str) -> list[int]:
    token_ids = tokenizer_for(info).encode(given) if isinstance(given, str) else known(info, given, param=param)
    if not token_ids:
        raise InvalidRequestError(f"{param}: expected at least one token", code="invalid_value", param=param)
    return within_context(info, token_ids, param=param, where=param)


def _finite(vector: list[float], model: str) -> "array[float]":
    if not all(map(math.isfinite, vector)):
        raise InvalidRequestError(
            f"model: an embedding by {model} holds numbers that are not finite", code="not_finite", param="model"
        )
    return array("f", vector)
