"""Server-sent events in OpenAI's form, and work that stops when its client has gone."""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Protocol, TypeVar

import redis
import structlog
from anyio import CancelScope
from fastapi import Request
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Send

from app.api.errors import ClientGoneError, error_body, from_outage
from app.core.errors import ServiceError
from app.services.generation import Delta, Usage

T = TypeVar("T")
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class StreamedAnswer(Protocol):
    """How a route words its chunks."""

    @property
    def usage_wanted(self) -> bool:
        """Whether a usage chunk ends the stream."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the first chunk of a choice."""

    def chunk(self, delta: Delta) -> dict[str, Any] | None:
        """Return the chunk of a delta."""

    def closing(self, usage: Usage) -> dict[str, Any]:
        """Return the usage chunk."""


class ClosedEventStream(EventSourceResponse):
    """Sends events made of `source`, and closes both however the connection ends, also before the first event.

    An abort must not wait for the garbage collector.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], source: AsyncGenerator[Delta | None, None]) -> None:
        super().__init__(events, headers=HEADERS)
        self.events = events
        self.source = source

    async def stream_response(self, send: Send) -> None:
        """Send the events."""
        try:
            await super().stream_response(send)
        finally:
            with CancelScope(shield=True):
                await self.events.aclose()
                await self.source.aclose()


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns, or cancel it when the client goes. Raises ClientGoneError then."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.create_task(gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


def event_stream(
    answer: StreamedAnswer, deltas: AsyncGenerator[Delta | None, None], usage: Usage, *, choices: int
) -> EventSourceResponse:
    """Return a stream of the answer's chunks, closed by `[DONE]`, or by an error event when it fails midway."""
    return ClosedEventStream(_events(answer, deltas, usage, choices), deltas)


async def _events(
    answer: StreamedAnswer, deltas: AsyncGenerator[Delta | None, None], usage: Usage, choices: int
) -> AsyncGenerator[bytes, None]:
    try:
        for index in range(choices):
            if opening := answer.opening(index):
                yield _event(opening)
        async for delta in deltas:
            if delta and (chunk := answer.chunk(delta)):
                yield _event(chunk)
        if answer.usage_wanted:
            yield _event(answer.closing(usage))
        yield format_sse_event(data_str="[DONE]")
    except ServiceError as error:
        yield _event(error_body(error))
    except redis.RedisError as error:
        yield _event(error_body(from_outage(error)))
    except Exception as error:
        structlog.get_logger().error("stream failed", exc_info=error)
        yield _event(error_body(ServiceError("The service failed midway", code="internal_error")))


def _event(content: dict[str, Any]) -> bytes:
    return format_sse_event(data_str=json.dumps(content, ensure_ascii=False, separators=(",", ":")))
