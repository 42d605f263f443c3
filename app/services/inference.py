"""Requests to workers over the bus, and their events: bounded on the way in, aborted when the client has gone.

Knows the bus and its failures; knows nothing of prompts, of OpenAI's answers or of the database.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

import structlog
from anyio import CancelScope
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError

from app.bus import aborts, inference_requests, presence, token_streams
from app.bus.inference_requests import QueueFullError
from app.bus.token_streams import READ_TOO_SLOWLY, EventsLostError, WorkerLostError, WorkerSilentError
from app.contracts.inference import TERMINAL_EVENTS, ErrorEvent, InferenceEvent, InferenceRequest
from app.core.errors import InvalidRequestError, ServiceError, UnavailableError

RETRY_SECONDS = 5
MOST_BUFFERED = 64
"""Events of merged streams that wait for their reader; the others wait in Redis."""


async def submit(client: AsyncRedis, requests: Sequence[InferenceRequest], *, limit: int) -> None:
    """Hand the requests to the workers of their base model. Raises UnavailableError when none can take them."""
    base_model = requests[0].base_model
    if not await presence.is_alive(client, base_model):
        raise UnavailableError(f"No worker for {base_model} is running", code="no_worker", retry_after=RETRY_SECONDS)
    for count, request in enumerate(requests):
        try:
            await inference_requests.submit(client, request, limit)
        except BaseException as error:
            for sent in requests[: count + 1]:
                await _abort(client, sent.id)
            if not isinstance(error, QueueFullError):
                raise
            raise UnavailableError(
                f"The queue of {base_model} is full", code="queue_full", retry_after=RETRY_SECONDS
            ) from error


async def events(client: AsyncRedis, request_id: str, *, silence: float) -> AsyncGenerator[InferenceEvent, None]:
    """Yield a request's events up to its last. Raises ServiceError when it fails; aborts it when the caller stops."""
    ended = False
    try:
        async with aclosing(_stream(client, request_id, silence)) as stream:
            async for event in stream:
                ended = isinstance(event, TERMINAL_EVENTS)
                if isinstance(event, ErrorEvent):
                    raise _failure(event)
                yield event
                if ended:
                    return
    except WorkerSilentError as error:
        raise UnavailableError(
            f"The worker sent nothing for {silence:g} s", code="worker_silent", retry_after=RETRY_SECONDS
        ) from error
    except WorkerLostError as error:
        raise UnavailableError(
            "The worker of this request is gone", code="worker_lost", retry_after=RETRY_SECONDS
        ) from error
    except EventsLostError as error:
        raise _failure(READ_TOO_SLOWLY) from error
    finally:
        if not ended:
            await _abort(client, request_id)


async def merged_events(
    client: AsyncRedis, request_ids: Sequence[str], *, silence: float
) -> AsyncGenerator[tuple[int, InferenceEvent], None]:
    """Yield the events of several requests as they come, each with its request's position. Raises as `events` does.

    Reads little further than the caller does.
    """
    unfinished = set(request_ids)
    queue: asyncio.Queue[tuple[int, InferenceEvent] | Exception | None] = asyncio.Queue(MOST_BUFFERED)

    async def pump(position: int, request_id: str) -> None:
        try:
            async with aclosing(events(client, request_id, silence=silence)) as stream:
                async for event in stream:
                    await queue.put((position, event))
            unfinished.discard(request_id)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    pumps = [asyncio.create_task(pump(position, request_id)) for position, request_id in enumerate(request_ids)]
    try:
        running = len(pumps)
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        with CancelScope(shield=True):
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for request_id in unfinished:
                await _abort(client, request_id)


def _stream(client: AsyncRedis, request_id: str, silence: float) -> AsyncGenerator[InferenceEvent, None]:
    return cast(AsyncGenerator[InferenceEvent, None], token_streams.events(client, request_id, silence))


async def _abort(client: AsyncRedis, request_id: str) -> None:
    # Shielded: this runs while the client's disconnect is cancelling us.
    with CancelScope(shield=True):
        try:
            await aborts.abort(client, request_id)
        except RedisError as error:
            structlog.get_logger().warning("abort lost", request_id=request_id, error=str(error))


def _failure(event: ErrorEvent) -> ServiceError:
    if event.status >= 500:
        return UnavailableError(event.message, code=event.code, status=event.status, retry_after=RETRY_SECONDS)
    return InvalidRequestError(event.message, code=event.code, status=event.status)
