"""Presence: whether some worker of a base model lives, so that a request is not queued for nobody."""

import redis
import redis.asyncio

from app.bus import names


def announce(r: redis.Redis, worker_id: str, base_model: str, ttl: float) -> None:
    """Say that a worker of the base model lives for the next `ttl` seconds."""
    r.set(names.presence(base_model), worker_id, px=int(ttl * 1000))


async def is_alive(r: redis.asyncio.Redis, base_model: str) -> bool:
    """Say whether some worker of the base model announced itself lately."""
    return bool(await r.exists(names.presence(base_model)))
