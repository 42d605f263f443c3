"""Perplexity of a model on a text, a conversation or a file, measured by a worker."""

import math
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from redis.asyncio import Redis as AsyncRedis
from sqlalchemy.orm import Session

from app.contracts.base_models import BaseModelInfo
from app.contracts.inference import ScoredSequence, ScoreEvent, ScoreRequest
from app.core.errors import InvalidRequestError, UnavailableError
from app.core.ids import new_id
from app.db.blobs import iter_lines
from app.services.files import get_training_file
from app.services.inference import RETRY_SECONDS, events, submit
from app.services.model_names import resolve_model
from app.services.token_ids import within_context
from app.services.training_data import at_least_two_tokens, one_example, tokenize
from app.text.examples import parse_example
from app.text.tokenize import TokenizedExample

MAX_TOKENS = 131_072


@dataclass(frozen=True)
class PreparedEvaluation:
    """A score request and the pinned name of the model it will measure."""

    model: str
    request: ScoreRequest


@dataclass(frozen=True)
class Evaluation:
    """`loss` is the mean negative log-likelihood in nats over `tokens` positions; `perplexity` is e to it."""

    loss: float
    perplexity: float
    tokens: int


def prepare_evaluation(
    session: Session,
    tenant_id: str,
    model: str,
    *,
    text: str | None,
    messages: Sequence[object] | None,
    file: str | None,
) -> PreparedEvaluation:
    """Return the request. Raises ServiceError naming the field at fault."""
    if sum(value is not None for value in (text, messages, file)) != 1:
        raise InvalidRequestError("text: give one of text, messages and file", code="invalid_value", param="text")
    resolved = resolve_model(session, tenant_id, model)
    if file is None:
        param = "text" if messages is None else "messages"
        tokenized = tokenize(resolved.info, one_example(text, messages)[0], param=param)
        examples = [_fitting(resolved.info, at_least_two_tokens(tokenized, param=param), param, param)]
    else:
        examples = _examples_of(session, tenant_id, file, resolved.info)
    sequences = [ScoredSequence(token_ids=e.token_ids, loss_mask=e.loss_mask) for e in examples]
    request = ScoreRequest(id=new_id("req"), base_model=resolved.info.id, adapter=resolved.ref, sequences=sequences)
    return PreparedEvaluation(resolved.name, request)


async def evaluate(client: AsyncRedis, prepared: PreparedEvaluation, *, silence: float, limit: int) -> Evaluation:
    """Submit the request and return what the worker measured. Raises ServiceError."""
    await submit(client, [prepared.request], limit=limit)
    async with aclosing(events(client, prepared.request.id, silence=silence)) as stream:
        async for event in stream:
            if isinstance(event, ScoreEvent):
                return _measured(prepared.model, event)
    raise UnavailableError("The worker ended without a result", code="no_result", retry_after=RETRY_SECONDS)


def _measured(model: str, event: ScoreEvent) -> Evaluation:
    loss = event.nll / event.tokens
    try:
        perplexity = math.exp(loss)
    except OverflowError:
        perplexity = math.inf
    if not math.isfinite(perplexity):
        raise InvalidRequestError(
            f"model: the perplexity of {model} on this text is not a finite number", code="not_finite", param="model"
        )
    return Evaluation(loss, perplexity, event.tokens)


def _examples_of(session: Session, tenant_id: str, file_id: str, info: BaseModelInfo) -> list[TokenizedExample]:
    held = get_training_file(session, tenant_id, file_id, param="file")
    examples: list[TokenizedExample] = []
    total = 0
    for number, line in enumerate(iter_lines(session, tenant_id, held.blob_id), start=1):
        if not line.strip():
            continue
        example = tokenize(info, parse_example(line), param="file", where=f"line {number}")
        total += len(example.token_ids)
        if total > MAX_TOKENS:
            raise InvalidRequestError(
                f"file: more than {MAX_TOKENS} tokens by line {number}; evaluate a smaller file",
                code="file_too_long",
                param="file",
            )
        if any(example.loss_mask):
            examples.append(_fitting(info, example, "file", f"file: line {number}"))
    if not examples:
        raise InvalidRequestError("file: no token counts in the loss", code="text_too_short", param="file")
    return examples


def _fitting(info: BaseModelInfo, example: TokenizedExample, param: str, where: str) -> TokenizedExample:
    within_context(info, example.token_ids, param=param, where=where)
    return example
