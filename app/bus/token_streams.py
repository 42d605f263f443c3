"""Token streams: a worker's events for one request, in order, to the one connection that waits for them."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import cast

import redis
import redis.asyncio
from pydantic import ConfigDict, TypeAdapter

from app.bus import names
from app.bus.connection import LONGEST_BLOCK_SECONDS
from app.contracts.inference import TERMINAL_EVENTS, InferenceEvent

EVENTS: TypeAdapter[list[InferenceEvent]] = TypeAdapter(
    list[InferenceEvent], config=ConfigDict(ser_json_inf_nan="constants")
)
"""Numbers that are not finite stay what they are: a broken adapter's loss must not make its event unreadable."""


class WorkerSilentError(Exception):
    """No event came for longer than allowed: the worker is gone or stuck."""


def emit(r: redis.Redis, request_id: str, events: Sequence[InferenceEvent]) -> None:
    """Append events to the request's stream."""
    emit_all(r, {request_id: events})


def emit_all(r: redis.Redis, batches: Mapping[str, Sequence[InferenceEvent]]) -> None:
    """Append the events of several requests in one round trip."""
    with r.pipeline() as pipeline:
        for request_id, events in batches.items():
            if events:
                pipeline.xadd(names.events(request_id), {"events": EVENTS.dump_json(list(events))})
                pipeline.expire(names.events(request_id), names.KEPT_SECONDS)
        pipeline.execute()


async def events(r: redis.asyncio.Redis, request_id: str, silence: float) -> AsyncIterator[InferenceEvent]:
    """Yield the request's events up to its terminal one. Raises WorkerSilentError after `silence` seconds without any.

    The stream is deleted behind the last event, so it can be read once.
    """
    key, last = names.events(request_id), b"0"
    while True:
        entries = await _next_entries(r, key, last, silence)
        for last, fields in entries:  # noqa: B007 - the next read continues after it
            for event in EVENTS.validate_json(fields[b"events"]):
                if isinstance(event, TERMINAL_EVENTS):
                    await r.delete(key)
                    yield event
                    return
                yield event


async def _next_entries(
    r: redis.asyncio.Redis, key: str, last: bytes, silence: float
) -> list[tuple[bytes, dict[bytes, bytes]]]:
    deadline = time.monotonic() + silence
    while (left := deadline - time.monotonic()) > 0:
        block = max(1, int(min(left, LONGEST_BLOCK_SECONDS) * 1000))
        answer = await r.xread({key: last}, block=block)
        if answer:
            [(_key, entries)] = cast("list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]", answer)
            return entries
    raise WorkerSilentError(f"no worker answered for {silence:g} seconds")
