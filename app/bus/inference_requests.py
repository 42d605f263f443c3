"""The bounded queue of inference requests, and the call in which an idle worker waits for work.

A base model has one list for all its workers and one for each of them, where requests wait whose adapter it holds. The
bound is on all of them together.
"""

from dataclasses import dataclass
from typing import cast

import redis
import redis.asyncio
from pydantic import TypeAdapter, ValidationError

from app.bus import names, takers
from app.bus.aborts import aborted
from app.bus.affinity import name_of
from app.bus.connection import LONGEST_BLOCK_SECONDS
from app.bus.presence import LUA, scope
from app.contracts.inference import InferenceRequest

MAX_DRAIN = 64
"""Requests taken at once, so that one worker does not empty the queue of its peers."""

REQUEST: TypeAdapter[InferenceRequest] = TypeAdapter(InferenceRequest)

SUBMIT = (
    LUA
    + """
local document, limit, version = ARGV[3], tonumber(ARGV[4]), ARGV[5]
forget_the_gone(requests, presence, load, held, kept)
local waiting = redis.call('LLEN', requests)
local least, holder, holder_load = nil, nil, nil
for _, worker in ipairs(redis.call('ZRANGE', presence, 0, -1)) do
  local own = redis.call('LLEN', requests .. ':' .. worker)
  waiting = waiting + own
  local its_load = own + (redis.call('HGET', load, worker) or 0)
  if not least or its_load < least then least = its_load end
  if version ~= '' and redis.call('SISMEMBER', held .. worker, version) == 1 then
    if not holder or its_load < holder_load then holder, holder_load = worker, its_load end
  end
end
if waiting >= limit then return 0 end
local list = requests
if holder and (holder_load < 0 or holder_load <= least) then list = requests .. ':' .. holder end
redis.call('RPUSH', list, document)
redis.call('EXPIRE', list, kept)
return 1
"""
)
"""A holder gets the request if it can start it at once, or is no fuller than the others."""

TAKE = """
local function take(list, most)
  return most > 0 and redis.call('LPOP', list, most) or {}
end
local most = tonumber(ARGV[1])
local own = take(KEYS[2], math.ceil(most / 2))
local shared = take(KEYS[1], most - #own)
local more = take(KEYS[2], most - #own - #shared)
local woken = ARGV[2] == '1' and redis.call('LPOP', KEYS[3])
return {own, shared, more, woken and 1 or 0}
"""
"""Half of what is taken may be the worker's own, and more only if nothing else waits."""


class QueueFullError(Exception):
    """As many requests as allowed wait for the base model already."""


async def submit(r: redis.asyncio.Redis, request: InferenceRequest, limit: int) -> None:
    """Queue the request, with a worker that holds its adapter if that is not busier than others.

    Raises QueueFullError if `limit` requests wait for its base model.
    """
    keys, arguments = scope(request.base_model)
    version = name_of(request.adapter) if request.adapter else ""
    answer = await r.eval(SUBMIT, len(keys), *keys, *arguments, REQUEST.dump_json(request), str(limit), version)
    if not answer:
        raise QueueFullError(f"{limit} requests wait for base model {request.base_model!r} already")


@dataclass(frozen=True)
class Taken:
    """What a poll brought."""

    requests: list[InferenceRequest]
    woken: bool
    """Whether the bus said that a job waits."""
    unreadable: int
    """Requests that this version cannot read; they are dropped."""


def poll(
    r: redis.Redis,
    base_model: str,
    timeout: float,
    *,
    worker_id: str = "",
    wakeups: bool = True,
    most: int = MAX_DRAIN,
) -> Taken:
    """Return the requests that wait, those abandoned meanwhile left out, and a wake-up if `wakeups` and there is one.

    Waits up to `timeout` seconds (5 at most) for the first of either; 0 does not wait.
    """
    shared, own = names.requests(base_model), names.own_requests(base_model, worker_id)
    taken: list[bytes] = []
    woken = False
    if timeout > 0:
        keys = [own, shared, *([names.wakeups(base_model)] if wakeups else [])]
        popped = cast("tuple[bytes, bytes] | None", r.blpop(keys, min(timeout, LONGEST_BLOCK_SECONDS)))
        woken = popped is not None and popped[0] == names.wakeups(base_model).encode()
        taken = [popped[1]] if popped is not None and not woken else []
    keys = [shared, own, names.wakeups(base_model)]
    arguments = [str(most - len(taken)), "1" if wakeups and not woken else "0"]
    answer = cast("tuple[list[bytes], list[bytes], list[bytes], int]", r.eval(TAKE, len(keys), *keys, *arguments))
    requests, unreadable = _read([*taken, *answer[0], *answer[1], *answer[2]])
    if worker_id and requests:
        takers.note(r, base_model, worker_id, [request.id for request in requests])
    gone = aborted(r, [request.id for request in requests])
    return Taken([request for request in requests if request.id not in gone], woken or bool(answer[3]), unreadable)


def _read(documents: list[bytes]) -> tuple[list[InferenceRequest], int]:
    """Return the requests, and how many documents were none."""
    requests = []
    for document in documents:
        try:
            requests.append(REQUEST.validate_json(document))
        except ValidationError:
            continue
    return requests, len(documents) - len(requests)
