"""Requests find the worker that holds their adapter, and leave it when it is full, gone or stopping."""

import asyncio

import pytest
import redis
import redis.asyncio

from app.bus import affinity, names, presence
from app.bus.inference_requests import QueueFullError, poll, submit
from app.contracts.adapters import AdapterRef
from app.contracts.inference import InferenceRequest
from tests.integration.bus.clients import run
from tests.integration.bus.messages import BASE, generate

IDLE, FULL = -4, 0
"""Loads: four places free, and none."""


def for_adapter(request_id: str, version: str | None, tenant: str = "tnt-1") -> InferenceRequest:
    """Return a request for an adapter version, or for the base alone."""
    ref = version and AdapterRef(
        tenant_id=tenant, adapter_id="adp-1", version_id=version, weights_id=f"blob-{version}", config={}
    )
    return generate(request_id).model_copy(update={"adapter": ref or None})


def name(version: str, tenant: str = "tnt-1") -> str:
    """Return what workers call a version."""
    adapter = for_adapter("req", version, tenant).adapter
    assert adapter is not None
    return affinity.name_of(adapter)


def host(r: redis.Redis, worker_id: str, *versions: str, load: int = IDLE, ttl: float = 60.0) -> None:
    """Let a worker live that holds some versions."""
    presence.announce(r, worker_id, BASE, ttl)
    affinity.publish(r, BASE, worker_id, held=[name(version) for version in versions], dropped=[], load=load)


def send(url: str, *requests: InferenceRequest, limit: int = 100) -> None:
    """Submit requests one after the other."""

    async def scenario(service: redis.asyncio.Redis) -> None:
        for request in requests:
            await submit(service, request, limit)

    run(url, scenario)


def taken(r: redis.Redis, worker_id: str, most: int = 64) -> list[str]:
    """Return the ids of what a worker takes."""
    return [request.id for request in poll(r, BASE, 0, worker_id=worker_id, most=most).requests]


def die(r: redis.Redis, worker_id: str) -> None:
    """Let a worker's presence have run out."""
    r.zadd(names.presence(BASE), {worker_id: 1})


def test_a_request_waits_for_the_worker_that_holds_its_adapter(valkey_url: str, worker: redis.Redis) -> None:
    host(worker, "wkr-1", "v1")
    host(worker, "wkr-2", "v2", "v3")
    requests = [for_adapter(f"req-{version}", version) for version in ("v1", "v2", "v3", "v4")]
    send(valkey_url, *requests, for_adapter("req-base", None), for_adapter("req-other", "v1", tenant="tnt-2"))
    assert taken(worker, "wkr-2", most=2) == ["req-v2", "req-v4"]
    assert taken(worker, "wkr-1") == ["req-v1", "req-base", "req-other"]
    assert taken(worker, "wkr-2") == ["req-v3"]


def test_a_waiting_worker_hears_of_its_own_request(valkey_url: str, worker: redis.Redis) -> None:
    host(worker, "wkr-1", "v1")
    send(valkey_url, for_adapter("req-1", "v1"))
    assert poll(worker, BASE, 0.05, worker_id="wkr-2").requests == []
    assert [request.id for request in poll(worker, BASE, 5.0, worker_id="wkr-1").requests] == ["req-1"]


def test_of_two_holders_the_less_loaded_gets_it(valkey_url: str, worker: redis.Redis) -> None:
    host(worker, "wkr-1", "v1", load=-1)
    host(worker, "wkr-2", "v1", load=-3)
    send(valkey_url, *(for_adapter(f"req-{n}", "v1") for n in range(4)))
    assert worker.llen(names.own_requests(BASE, "wkr-2")) == 3
    assert worker.llen(names.own_requests(BASE, "wkr-1")) == 1


def test_a_full_holder_gets_it_only_if_nobody_is_freer(valkey_url: str, worker: redis.Redis) -> None:
    host(worker, "wkr-1", "v1", load=FULL)
    host(worker, "wkr-2", load=IDLE)
    send(valkey_url, for_adapter("req-1", "v1"))
    assert taken(worker, "wkr-2") == ["req-1"]
    host(worker, "wkr-2", load=FULL + 2)
    send(valkey_url, for_adapter("req-2", "v1"))
    assert taken(worker, "wkr-2") == []
    assert taken(worker, "wkr-1") == ["req-2"]


def test_requests_beyond_the_free_places_of_a_holder_go_to_all(valkey_url: str, worker: redis.Redis) -> None:
    host(worker, "wkr-1", "v1", load=-2)
    host(worker, "wkr-2", load=IDLE)
    send(valkey_url, *(for_adapter(f"req-{n}", "v1") for n in range(5)))
    assert taken(worker, "wkr-2") == ["req-2", "req-3", "req-4"]
    assert taken(worker, "wkr-1") == ["req-0", "req-1"]


def test_what_was_dropped_attracts_nothing(valkey_url: str, worker: redis.Redis) -> None:
    host(worker, "wkr-1", "v1", "v2")
    affinity.publish(worker, BASE, "wkr-1", held=[], dropped=[name("v1")], load=IDLE)
    send(valkey_url, for_adapter("req-1", "v1"), for_adapter("req-2", "v2"))
    assert taken(worker, "wkr-2") == ["req-1"]


def test_own_and_shared_requests_take_turns(valkey_url: str, worker: redis.Redis) -> None:
    host(worker, "wkr-1", "v1", load=-100)
    send(valkey_url, *(for_adapter(f"own-{n}", "v1") for n in range(8)))
    send(valkey_url, *(for_adapter(f"shared-{n}", None) for n in range(8)))
    assert taken(worker, "wkr-1", most=4) == ["own-0", "own-1", "shared-0", "shared-1"]
    assert taken(worker, "wkr-1", most=20) == [
        *(f"own-{n}" for n in range(2, 8)),
        *(f"shared-{n}" for n in range(2, 8)),
    ]


def test_the_bound_is_on_all_lists_of_a_base_model_together(valkey_url: str, worker: redis.Redis) -> None:
    host(worker, "wkr-1", "v1", load=-100)
    host(worker, "wkr-2", "v2", load=-100)

    async def scenario(service: redis.asyncio.Redis) -> list[BaseException | None]:
        versions = ["v1", "v2", None]
        requests = [for_adapter(f"req-{n}", versions[n % 3]) for n in range(60)]
        return await asyncio.gather(*(submit(service, request, 10) for request in requests), return_exceptions=True)

    refusals = [outcome for outcome in run(valkey_url, scenario) if outcome is not None]
    assert len(refusals) == 50
    assert {type(refusal) for refusal in refusals} == {QueueFullError}
    lists = [names.requests(BASE), names.own_requests(BASE, "wkr-1"), names.own_requests(BASE, "wkr-2")]
    lengths = [worker.llen(key) for key in lists]
    assert sum(lengths) == 10
    assert min(lengths) > 0


@pytest.mark.parametrize("noticed_by", ["a worker", "the service"])
def test_the_requests_of_a_worker_that_died_go_first_to_any(
    valkey_url: str, worker: redis.Redis, noticed_by: str
) -> None:
    host(worker, "wkr-1", "v1")
    host(worker, "wkr-2", load=FULL)
    send(valkey_url, for_adapter("req-1", "v1"), for_adapter("req-2", "v1"), for_adapter("req-3", None))
    die(worker, "wkr-1")
    if noticed_by == "a worker":
        presence.announce(worker, "wkr-2", BASE, 60)
    send(valkey_url, for_adapter("req-4", "v1"))
    assert taken(worker, "wkr-2") == ["req-1", "req-2", "req-3", "req-4"]
    assert worker.exists(names.held(BASE, "wkr-1")) == 0
    assert worker.hkeys(names.load(BASE)) == [b"wkr-2"]


def test_a_worker_that_leaves_hands_over_and_is_not_brought_back(valkey_url: str, worker: redis.Redis) -> None:
    host(worker, "wkr-1", "v1")
    host(worker, "wkr-2")
    send(valkey_url, for_adapter("req-1", "v1"))
    presence.leave(worker, "wkr-1", BASE)
    presence.announce(worker, "wkr-1", BASE, 60)
    send(valkey_url, for_adapter("req-2", "v1"))
    assert taken(worker, "wkr-2") == ["req-1", "req-2"]
    assert run(valkey_url, lambda service: presence.is_alive(service, BASE))
    presence.leave(worker, "wkr-2", BASE)
    assert not run(valkey_url, lambda service: presence.is_alive(service, BASE))


def test_nothing_is_kept_for_ever(valkey_url: str, worker: redis.Redis) -> None:
    host(worker, "wkr-1", "v1")
    host(worker, "wkr-2")
    send(valkey_url, for_adapter("req-1", "v1"), for_adapter("req-2", None))
    presence.leave(worker, "wkr-2", BASE)
    keys = worker.keys("graft:*")
    assert len(keys) == 6
    assert all(0 < worker.ttl(key) <= 600 for key in keys)
