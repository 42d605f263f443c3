"""The bounded request queue and the worker's poll."""

import asyncio
import threading
import time

import pytest
import redis
import redis.asyncio

from app.bus.aborts import abort, aborted
from app.bus.connection import connect
from app.bus.inference_requests import MAX_DRAIN, QueueFullError, poll, submit
from app.bus.wakeups import MAX_PENDING, wake_workers
from tests.integration.bus.clients import run
from tests.integration.bus.messages import BASE, generate, score


def submit_all(url: str, *ids: str, base_model: str = BASE, limit: int = 100) -> None:
    async def scenario(service: redis.asyncio.Redis) -> None:
        for request_id in ids:
            await submit(service, generate(request_id, base_model=base_model), limit)

    run(url, scenario)


def test_requests_arrive_whole_and_in_order(valkey_url: str, worker: redis.Redis) -> None:
    requests = [generate("req-1"), score("req-2"), generate("req-3")]

    async def scenario(service: redis.asyncio.Redis) -> None:
        for request in requests:
            await submit(service, request, 10)

    run(valkey_url, scenario)
    assert poll(worker, BASE, 1.0).requests == requests
    assert poll(worker, BASE, 0).requests == []


def test_exactly_the_limit_gets_in_at_once(valkey_url: str, worker: redis.Redis) -> None:
    async def scenario(service: redis.asyncio.Redis) -> list[BaseException | None]:
        submissions = [submit(service, generate(f"req-{n}"), 10) for n in range(60)]
        return await asyncio.gather(*submissions, return_exceptions=True)

    outcomes = run(valkey_url, scenario)
    refusals = [outcome for outcome in outcomes if outcome is not None]
    assert len(refusals) == 50
    assert {type(refusal) for refusal in refusals} == {QueueFullError}
    assert str(refusals[0]) == "10 requests wait for base model 'smol' already"
    assert len(poll(worker, BASE, 0).requests) == 10
    submit_all(valkey_url, "req-later", limit=1)


def test_base_models_have_queues_of_their_own(valkey_url: str, worker: redis.Redis) -> None:
    submit_all(valkey_url, "req-1", base_model="another", limit=1)
    submit_all(valkey_url, "req-2", limit=1)
    assert [request.id for request in poll(worker, BASE, 0).requests] == ["req-2"]
    assert [request.id for request in poll(worker, "another", 0).requests] == ["req-1"]


def test_a_large_request(valkey_url: str, worker: redis.Redis) -> None:
    request = generate("req-large", tokens=500_000)
    run(valkey_url, lambda service: submit(service, request, 1))
    assert poll(worker, BASE, 1.0).requests == [request]


def test_one_poll_leaves_the_rest_to_other_workers(valkey_url: str, worker: redis.Redis) -> None:
    submit_all(valkey_url, *(f"req-{n}" for n in range(MAX_DRAIN + 3)))
    assert len(poll(worker, BASE, 1.0).requests) == MAX_DRAIN
    assert [request.id for request in poll(worker, BASE, 0).requests] == [
        f"req-{n}" for n in range(MAX_DRAIN, MAX_DRAIN + 3)
    ]


def test_an_aborted_request_is_not_given_out(valkey_url: str, worker: redis.Redis) -> None:
    submit_all(valkey_url, "req-1", "req-2", "req-3")
    run(valkey_url, lambda service: abort(service, "req-2"))
    assert [request.id for request in poll(worker, BASE, 0).requests] == ["req-1", "req-3"]
    assert aborted(worker, ["req-1", "req-2", "req-3"]) == {"req-2"}
    assert aborted(worker, []) == set()


def poll_in_thread(url: str, timeout: float) -> tuple[threading.Thread, list[object]]:
    """Start a poll and return once the server has it waiting."""
    answers: list[object] = []

    def wait() -> None:
        with connect(url) as client:
            started = time.monotonic()
            answers.append(poll(client, BASE, timeout).requests)
            answers.append(time.monotonic() - started)

    thread = threading.Thread(target=wait)
    thread.start()
    with connect(url) as client:
        while client.info("clients")["blocked_clients"] == 0:
            pass
    return thread, answers


def test_a_wake_up_ends_the_wait(valkey_url: str, worker: redis.Redis) -> None:
    thread, answers = poll_in_thread(valkey_url, 5.0)
    wake_workers(worker, BASE)
    thread.join()
    requests, seconds = answers
    assert requests == []
    assert seconds < 4.0


def test_a_request_ends_the_wait(valkey_url: str) -> None:
    thread, answers = poll_in_thread(valkey_url, 5.0)
    submit_all(valkey_url, "req-1")
    thread.join()
    requests, seconds = answers
    assert requests == [generate("req-1")]
    assert seconds < 4.0


def test_a_wake_up_before_the_poll_is_not_lost(worker: redis.Redis) -> None:
    wake_workers(worker, BASE)
    started = time.monotonic()
    assert poll(worker, BASE, 5.0).requests == []
    assert time.monotonic() - started < 4.0


def test_a_busy_worker_takes_a_wake_up_only_if_it_wants_one(worker: redis.Redis) -> None:
    wake_workers(worker, BASE)
    assert not poll(worker, BASE, 0, wakeups=False).woken
    assert not poll(worker, BASE, 0.05, wakeups=False).woken
    assert poll(worker, BASE, 0).woken
    assert not poll(worker, BASE, 0).woken
    wake_workers(worker, BASE)
    assert poll(worker, BASE, 1.0).woken


def test_wake_ups_do_not_pile_up(worker: redis.Redis) -> None:
    for _ in range(100):
        wake_workers(worker, BASE)
    assert worker.llen("graft:wakeups:smol") == MAX_PENDING


def test_an_idle_poll_returns_after_its_timeout(worker: redis.Redis) -> None:
    started = time.monotonic()
    assert poll(worker, BASE, 0.2).requests == []
    assert 0.15 < time.monotonic() - started < 3.0
    started = time.monotonic()
    assert poll(worker, BASE, 0).requests == []
    assert time.monotonic() - started < 1.0


def test_nothing_forgotten_stays_for_ever(valkey_url: str, worker: redis.Redis) -> None:
    submit_all(valkey_url, "req-1")
    run(valkey_url, lambda service: abort(service, "req-9"))
    wake_workers(worker, BASE)
    keys = worker.keys("graft:*")
    assert len(keys) == 3
    assert all(0 < worker.ttl(key) <= 600 for key in keys)


def test_an_unreachable_server_is_a_redis_error() -> None:
    nowhere = "redis://127.0.0.1:1"
    with pytest.raises(redis.RedisError), connect(nowhere) as client:
        poll(client, BASE, 1.0)
    with pytest.raises(redis.RedisError), connect(nowhere) as client:
        wake_workers(client, BASE)
    with pytest.raises(redis.RedisError):
        run(nowhere, lambda service: submit(service, generate("req-1"), 1))
