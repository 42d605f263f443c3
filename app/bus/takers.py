"""Who has taken a request, so that nobody waits long for a worker that was killed with it."""

from collections.abc import Sequence
from typing import cast

import redis
import redis.asyncio

from app.bus import names

IS_LOST = """
local time = redis.call('TIME')
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score and tonumber(score) > time[1] * 1000 + math.floor(time[2] / 1000) then return 0 end
return 1 - redis.call('EXISTS', KEYS[2])
"""
"""A worker that left by its own will ends its requests itself."""


def note(r: redis.Redis, base_model: str, worker_id: str, request_ids: Sequence[str]) -> None:
    """Say that a worker has taken the requests."""
    with r.pipeline(transaction=False) as pipeline:
        for request_id in request_ids:
            pipeline.set(names.taker(request_id), f"{base_model}:{worker_id}", ex=names.KEPT_SECONDS)
        pipeline.execute()


async def is_lost(r: redis.asyncio.Redis, request_id: str) -> bool:
    """Say whether the worker that has taken the request is gone; False while nobody has taken it."""
    taker = cast("bytes | None", await r.getex(names.taker(request_id), ex=names.KEPT_SECONDS))
    if taker is None:
        return False
    base_model, _, worker_id = taker.decode().partition(":")
    return bool(await r.eval(IS_LOST, 2, names.presence(base_model), names.left(worker_id), worker_id))
