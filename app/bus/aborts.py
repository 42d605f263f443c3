"""Aborts: nobody waits for a request any more, so its place in the batch can be freed."""

from collections.abc import Sequence

import redis
import redis.asyncio

from app.bus import names


async def abort(r: redis.asyncio.Redis, request_id: str) -> None:
    """Say that nobody waits for the request."""
    await r.set(names.abort(request_id), b"1", ex=names.KEPT_SECONDS)


def aborted(r: redis.Redis, request_ids: Sequence[str]) -> set[str]:
    """Return those of the requests that were aborted."""
    if not request_ids:
        return set()
    marks = r.mget([names.abort(request_id) for request_id in request_ids])
    return {request_id for request_id, mark in zip(request_ids, marks, strict=True) if mark is not None}
