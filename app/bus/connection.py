"""Connections to Redis or Valkey. Failures surface as redis.RedisError, after seconds and not minutes.

Commands are never retried here: one that timed out may have been carried out, and a request sent twice runs twice.
"""

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 15.0
LONGEST_BLOCK_SECONDS = 5.0
"""Blocking commands ask for less than ANSWER_SECONDS, so that a silent server is told from an empty queue."""


def connect(url: str) -> redis.Redis:
    """Return a client for a worker or a script; it connects at its first command."""
    return redis.Redis.from_url(
        url,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )


def connect_async(url: str) -> redis.asyncio.Redis:
    """Return a client for the service's event loop; close it with `aclose()`."""
    return redis.asyncio.Redis.from_url(
        url,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=ANSWER_SECONDS,
        retry=AsyncRetry(NoBackoff(), 0),
    )
