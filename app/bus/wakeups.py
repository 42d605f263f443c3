"""Wake-ups: news that is worth a look at the database. A lost one costs a poll, nothing else."""

import time

import redis
import redis.asyncio

from app.bus import names
from app.bus.connection import LONGEST_BLOCK_SECONDS

MAX_PENDING = 16
"""Wake-ups kept for a base model: while all its workers are busy, more would only cause empty polls."""


NOTICE_SECONDS = 10
"""How long a job's end stays announced: for those who were about to wait when it came."""


def wake_workers(r: redis.Redis, base_model: str) -> None:
    """Tell one waiting worker of the base model that a job was queued."""
    key = names.wakeups(base_model)
    with r.pipeline() as pipeline:
        pipeline.lpush(key, b"job")
        pipeline.ltrim(key, 0, MAX_PENDING - 1)
        pipeline.expire(key, names.KEPT_SECONDS)
        pipeline.execute()


def notify_job(r: redis.Redis, job_id: str) -> None:
    """Tell everybody who waits for the job, now or within seconds, that it has ended."""
    key = names.ended(job_id)
    with r.pipeline() as pipeline:
        pipeline.xadd(key, {"ended": b"1"}, maxlen=1)
        pipeline.expire(key, NOTICE_SECONDS)
        pipeline.execute()


async def wait_for_job(r: redis.asyncio.Redis, job_id: str, timeout: float) -> bool:
    """Wait until the job's end is announced, also when that was just before; False after `timeout` seconds.

    Only the database says how the job ended, so read it after either answer.
    """
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        block = max(1, int(min(left, LONGEST_BLOCK_SECONDS) * 1000))
        if await r.xread({names.ended(job_id): "0"}, count=1, block=block):
            return True
    return False
