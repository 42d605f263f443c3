"""The bounded queue of inference requests, one per base model, and the call in which an idle worker waits for work."""

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Taken:
    """What a poll brought: requests, and whether the bus said that a job waits."""

    requests: list[InferenceRequest]
    woken: bool


def poll(r: redis.Redis, base_model: str, timeout: float, *, wakeups: bool = True) -> Taken:
    """Return the requests that wait, those abandoned meanwhile left out, and a wake-up if `wakeups` and there is one.

    Waits up to `timeout` seconds (5 at most) for the first of either; 0 does not wait.
    """
    key = names.requests(base_model)
    taken: list[bytes] = []
    woken = False
    if timeout > 0:
        keys = [key, names.wakeups(base_model)] if wakeups else [key]
        popped = cast("tuple[bytes, bytes] | None", r.blpop(keys, min(timeout, LONGEST_BLOCK_SECONDS)))
        if popped is not None and popped[0] == key.encode():
            taken = [popped[1]]
        else:
            woken = popped is not None
    with r.pipeline(transaction=False) as pipeline:
        pipeline.lpop(key, MAX_DRAIN - len(taken))
        if wakeups and not woken:
            pipeline.lpop(names.wakeups(base_model))
        waiting, *wakeup = pipeline.execute()
    requests = [REQUEST.validate_json(document) for document in taken + (waiting or [])]
    gone = aborted(r, [request.id for request in requests])
    return Taken([request for request in requests if request.id not in gone], woken or wakeup not in ([], [None]))
