"""The bounded queue of inference requests, one per base model, and the call in which an idle worker waits for work."""

from typing import cast

import redis
import redis.asyncio
from pydantic import TypeAdapter

from app.bus import names
from app.bus.aborts import aborted
from app.bus.connection import LONGEST_BLOCK_SECONDS
from app.contracts.inference import InferenceRequest

MAX_DRAIN = 64
"""Requests taken at once, so that one worker does not empty the queue of its peers."""

REQUEST: TypeAdapter[InferenceRequest] = TypeAdapter(InferenceRequest)

SUBMIT = """
if redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""


class QueueFullError(Exception):
    """As many requests as allowed wait for the base model already."""


async def submit(r: redis.asyncio.Redis, request: InferenceRequest, limit: int) -> None:
    """Queue the request unless `limit` requests wait for its base model. Raises QueueFullError."""
    key = names.requests(request.base_model)
    answer = await r.eval(SUBMIT, 1, key, REQUEST.dump_json(request), str(limit), str(names.KEPT_SECONDS))
    if not answer:
        raise QueueFullError(f"{limit} requests wait for base model {request.base_model!r} already")


def poll(r: redis.Redis, base_model: str, timeout: float) -> list[InferenceRequest]:
    """Return the requests that wait, those abandoned meanwhile left out; empty when there is none.

    Waits up to `timeout` seconds (5 at most) for the first request or for a wake-up; 0 does not wait.
    """
    taken = _wait(r, base_model, min(timeout, LONGEST_BLOCK_SECONDS)) if timeout > 0 else []
    waiting = r.lpop(names.requests(base_model), MAX_DRAIN - len(taken))
    taken += cast("list[bytes] | None", waiting) or []
    requests = [REQUEST.validate_json(document) for document in taken]
    gone = aborted(r, [request.id for request in requests])
    return [request for request in requests if request.id not in gone]


def _wait(r: redis.Redis, base_model: str, timeout: float) -> list[bytes]:
    requests = names.requests(base_model)
    popped = cast("tuple[bytes, bytes] | None", r.blpop([requests, names.wakeups(base_model)], timeout))
    return [popped[1]] if popped is not None and popped[0] == requests.encode() else []
