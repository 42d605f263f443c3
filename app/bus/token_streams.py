"""Token streams: a worker's events for one request, in order, to the one connection that waits for them.

A worker never waits for a reader, and a request has as many events as its `max_tokens` and log-probabilities make: more
than a server should keep for a client that reads slowly. So a stream holds little more than what is unread, up to
MOST_UNREAD_BYTES; beyond, what is unread is replaced by an error and the request aborted. Nothing is lost unsaid.
"""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import cast

import redis
import redis.asyncio
from pydantic import ConfigDict, TypeAdapter

from app.bus import names, takers
from app.bus.connection import LONGEST_BLOCK_SECONDS
from app.contracts.inference import TERMINAL_EVENTS, ErrorEvent, InferenceEvent

EVENTS: TypeAdapter[list[InferenceEvent]] = TypeAdapter(
    list[InferenceEvent], config=ConfigDict(ser_json_inf_nan="constants")
)
"""Numbers that are not finite stay what they are: a broken adapter's loss must not make its event unreadable."""

MOST_UNREAD_BYTES = 64 * 1024 * 1024
"""Of one request, as the server counts its memory: over half a million tokens without log-probabilities."""
ENTRIES_AT_ONCE = 16
"""What a reader takes into its own memory."""
TRIM_EVERY = 64
"""How many entries a reader leaves behind before it strikes them."""
READ_TOO_SLOWLY = ErrorEvent(
    status=503, code="read_too_slowly", message="the answer was read too slowly, the rest of it was dropped"
)

APPEND = """
local limit, kept, too_slow = tonumber(ARGV[1]), ARGV[2], ARGV[3]
for i = 1, #KEYS, 2 do
  local stream, abort, events = KEYS[i], KEYS[i + 1], ARGV[3 + (i + 1) / 2]
  if (redis.call('MEMORY', 'USAGE', stream) or 0) > limit then
    redis.call('XTRIM', stream, 'MAXLEN', 0)
    redis.call('SET', abort, '1', 'EX', kept)
    events = too_slow
  end
  redis.call('XADD', stream, '*', 'events', events)
  redis.call('EXPIRE', stream, kept)
end
"""


class EventsLostError(Exception):
    """The stream has begun and is no more: nobody read it for as long as it is kept, or the server lost it."""


class WorkerLostError(Exception):
    """The worker that had taken the request is gone, and has said nothing more."""


class WorkerSilentError(Exception):
    """No event came for longer than allowed: the worker is gone or stuck."""


def emit(r: redis.Redis, request_id: str, events: Sequence[InferenceEvent]) -> None:
    """Append events to the request's stream."""
    emit_all(r, {request_id: events})


def emit_all(r: redis.Redis, batches: Mapping[str, Sequence[InferenceEvent]]) -> None:
    """Append the events of several requests in one round trip."""
    said = {request_id: EVENTS.dump_json(list(events)) for request_id, events in batches.items() if events}
    if not said:
        return
    keys = [key for request_id in said for key in (names.events(request_id), names.abort(request_id))]
    limits = [str(MOST_UNREAD_BYTES), str(names.KEPT_SECONDS)]
    r.eval(APPEND, len(keys), *keys, *limits, EVENTS.dump_json([READ_TOO_SLOWLY]), *said.values())


async def events(r: redis.asyncio.Redis, request_id: str, silence: float) -> AsyncIterator[InferenceEvent]:
    """Yield the request's events up to its terminal one. Raises WorkerSilentError after `silence` seconds without any.

    What was read is struck, and the whole stream behind the last event, so it can be read once. Raises EventsLostError
    when the rest of it was not kept, WorkerLostError when there will be none.
    """
    key, last, behind = names.events(request_id), b"0", 0
    while True:
        if behind >= TRIM_EVERY:
            await r.xtrim(key, minid=last, approximate=False)
            behind = 0
        entries = await _next_entries(r, request_id, last, silence)
        behind += len(entries)
        for last, fields in entries:  # noqa: B007 - the next read continues after it
            for event in EVENTS.validate_json(fields[b"events"]):
                if isinstance(event, TERMINAL_EVENTS):
                    await r.delete(key, names.taker(request_id))
                    yield event
                    return
                yield event


async def _next_entries(
    r: redis.asyncio.Redis, request_id: str, last: bytes, silence: float
) -> list[tuple[bytes, dict[bytes, bytes]]]:
    key, lost = names.events(request_id), False
    deadline = time.monotonic() + silence
    while (left := deadline - time.monotonic()) > 0:
        block = 1 if lost else max(1, int(min(left, LONGEST_BLOCK_SECONDS) * 1000))
        answer = await r.xread({key: last}, count=ENTRIES_AT_ONCE, block=block)
        if answer:
            [(_key, entries)] = cast("list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]", answer)
            return entries
        if lost:
            raise WorkerLostError(f"the worker of {request_id} is gone")
        if not await r.expire(key, names.KEPT_SECONDS) and last != b"0":
            raise EventsLostError(f"events of {key} after {last.decode()} were not kept")
        lost = await takers.is_lost(r, request_id)  # and reads once more: it may have ended the request before
    raise WorkerSilentError(f"no worker answered for {silence:g} seconds")
