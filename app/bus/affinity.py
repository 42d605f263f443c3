"""Affinity: workers say which adapter versions they hold, so that requests for one find it loaded."""

from collections.abc import Collection

import redis

from app.bus import names
from app.contracts.adapters import AdapterRef


def name_of(adapter: AdapterRef) -> str:
    """Return what an adapter version is called here; no two tenants' are the same."""
    return "/".join(adapter.key)


def publish(
    r: redis.Redis, base_model: str, worker_id: str, *, held: Collection[str], dropped: Collection[str], load: int
) -> None:
    """Say what a worker holds now and no longer, and its load: the requests it has open, less those it runs at once.

    Both are forgotten if not said again for a while.
    """
    key = names.held(base_model, worker_id)
    with r.pipeline(transaction=False) as pipeline:
        if held:
            pipeline.sadd(key, *held)
            pipeline.expire(key, names.KEPT_SECONDS)
        if dropped:
            pipeline.srem(key, *dropped)
        pipeline.hset(names.load(base_model), worker_id, load)
        pipeline.expire(names.load(base_model), names.KEPT_SECONDS)
        pipeline.execute()
