"""Presence: which workers of a base model live, so that no request is queued for nobody.

A worker says so again and again. Whoever notices that one is gone, another worker or the service, puts the requests
that waited for it alone back before those that wait for any.
"""

import redis
import redis.asyncio

from app.bus import names

LUA = """
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function hand_over(requests, worker, kept)
  local own = requests .. ':' .. worker
  while redis.call('LMOVE', own, requests, 'RIGHT', 'LEFT') do end
  redis.call('EXPIRE', requests, kept)
end

local function forget(requests, presence, load, held, worker, kept)
  hand_over(requests, worker, kept)
  redis.call('ZREM', presence, worker)
  redis.call('HDEL', load, worker)
  redis.call('DEL', held .. worker)
end

local function forget_the_gone(requests, presence, load, held, kept)
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', presence, '-inf', now_ms())) do
    forget(requests, presence, load, held, worker, kept)
  end
end

local requests, presence, load, held, kept = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
"""
"""What scripts of this room begin with; `scope` gives their first keys and arguments. KEYS[3] is followed by theirs."""

ANNOUNCE = (
    LUA
    + """
if redis.call('EXISTS', KEYS[4]) == 0 then
  redis.call('ZADD', presence, now_ms() + ARGV[4], ARGV[3])
end
forget_the_gone(requests, presence, load, held, kept)
redis.call('EXPIRE', presence, kept)
"""
)
LEAVE = (
    LUA
    + """
redis.call('SET', KEYS[4], '1', 'EX', kept)
forget(requests, presence, load, held, ARGV[3], kept)
"""
)
HAND_OVER = LUA + "hand_over(requests, ARGV[3], kept)"
IS_ALIVE = LUA + "return redis.call('ZCOUNT', presence, now_ms(), '+inf')"


def scope(base_model: str) -> tuple[list[str], list[str]]:
    """Return the keys and arguments that LUA names."""
    keys = [names.requests(base_model), names.presence(base_model), names.load(base_model)]
    return keys, [names.held(base_model, ""), str(names.KEPT_SECONDS)]


def announce(r: redis.Redis, worker_id: str, base_model: str, ttl: float) -> None:
    """Say that a worker of the base model lives for the next `ttl` seconds, unless it has left."""
    keys, arguments = scope(base_model)
    keys.append(names.left(worker_id))
    r.eval(ANNOUNCE, len(keys), *keys, *arguments, worker_id, str(int(ttl * 1000)))


def leave(r: redis.Redis, worker_id: str, base_model: str) -> None:
    """Say that a worker takes no more requests, for good: those that wait for it alone go to the others."""
    keys, arguments = scope(base_model)
    keys.append(names.left(worker_id))
    r.eval(LEAVE, len(keys), *keys, *arguments, worker_id)


def hand_over(r: redis.Redis, worker_id: str, base_model: str) -> None:
    """Let any worker take the requests that wait for this one alone."""
    keys, arguments = scope(base_model)
    r.eval(HAND_OVER, len(keys), *keys, *arguments, worker_id)


async def is_alive(r: redis.asyncio.Redis, base_model: str) -> bool:
    """Say whether some worker of the base model announced itself lately."""
    keys, arguments = scope(base_model)
    return bool(await r.eval(IS_ALIVE, len(keys), *keys, *arguments))
