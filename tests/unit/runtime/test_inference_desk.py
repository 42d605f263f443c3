"""The desk between bus and engine: events out, aborts in, broken batches and unreadable messages survived."""

import asyncio
from collections.abc import Iterator

import pytest
import redis

from app.bus import names, presence
from app.bus.aborts import abort
from app.bus.affinity import name_of
from app.bus.connection import connect, connect_async
from app.contracts.adapters import AdapterRef
from app.contracts.inference import DoneEvent, ErrorEvent
from app.db.blobs import write_blob
from app.db.tables import BlobChunk
from tests.faults.streams import read, send, stream
from tests.unit.runtime.conftest import Room
from workers.inference.adapter_cache import AdapterCache
from workers.inference.engine import Engine
from workers.inference.prefixes import PrefixStore
from workers.inference.scheduler import Limits
from workers.runtime.adapter_loader import AdapterLoader
from workers.runtime.inference_desk import InferenceDesk


@pytest.fixture
def bus(valkey_url: str) -> Iterator[redis.Redis]:
    """A worker's connection."""
    with connect(valkey_url) as client:
        yield client


@pytest.fixture
def engine(room: Room) -> Iterator[Engine]:
    """An engine that loads adapters from the test's database."""
    loader = AdapterLoader(room.database, room.room.info)
    adapters = AdapterCache(range(2), loader, room.room.bank)
    yield Engine(room.room.model, room.room.info, adapters, PrefixStore(0), limits=Limits(4))
    loader.close()


@pytest.fixture
def desk(engine: Engine, bus: redis.Redis) -> InferenceDesk:
    """A desk for the tiny model."""
    return InferenceDesk(engine, bus, "tiny", worker_id="wkr-1", places=4, held=2)


def work(desk: InferenceDesk) -> None:
    """Take requests in and run them to their end."""
    desk.receive(0, accept=True)
    while desk.busy:
        desk.step()


def test_requests_come_in_and_events_go_out(desk: InferenceDesk, valkey_url: str) -> None:
    send(valkey_url, stream("req-1", tokens=4))
    send(valkey_url, stream("req-2", tokens=3, n=2))
    work(desk)
    assert read(valkey_url, "req-1")[-1] == DoneEvent(prompt_tokens=3, completion_tokens=4)
    assert read(valkey_url, "req-2")[-1] == DoneEvent(prompt_tokens=3, completion_tokens=6)


def test_an_abort_ends_a_running_request(desk: InferenceDesk, engine: Engine, valkey_url: str) -> None:
    send(valkey_url, stream("req-1", tokens=400))
    desk.receive(0, accept=True)
    desk.step()
    assert engine.request_ids == ["req-1"]

    async def give_up() -> None:
        async with connect_async(valkey_url) as r:
            await abort(r, "req-1")

    asyncio.run(give_up())
    desk.receive(0, accept=True)
    desk.step()
    assert engine.request_ids == []


def test_without_accept_requests_stay_for_other_workers(desk: InferenceDesk, bus: redis.Redis, valkey_url: str) -> None:
    send(valkey_url, stream("req-1", tokens=4))
    desk.receive(0, accept=False)
    assert not desk.busy
    assert bus.llen(names.requests("tiny")) == 1


def test_a_failing_step_ends_its_requests_with_an_error(
    desk: InferenceDesk, room: Room, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(valkey_url, stream("req-1", tokens=4))
    with monkeypatch.context() as patch:
        patch.setattr(room.room.model, "hidden", lambda *_, **__: 1 / 0)
        work(desk)
    assert read(valkey_url, "req-1")[-1] == ErrorEvent(
        status=500, code="worker_error", message="the worker failed on this batch of requests"
    )
    send(valkey_url, stream("req-2", tokens=4))
    work(desk)
    assert isinstance(read(valkey_url, "req-2")[-1], DoneEvent)


def test_an_unreadable_message_is_dropped(desk: InferenceDesk, bus: redis.Redis, valkey_url: str) -> None:
    bus.rpush(names.requests("tiny"), b'{"kind": "generate", "from": "the future"}')
    work(desk)
    send(valkey_url, stream("req-1", tokens=4))
    work(desk)
    assert isinstance(read(valkey_url, "req-1")[-1], DoneEvent)


def test_a_full_engine_leaves_its_own_requests_to_others(
    desk: InferenceDesk, engine: Engine, bus: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    presence.announce(bus, "wkr-1", "tiny", 60)
    bus.rpush(names.own_requests("tiny", "wkr-1"), b"a request")
    monkeypatch.setattr(Engine, "has_room", False)
    desk.receive(0, accept=True)
    assert bus.lrange(names.requests("tiny"), 0, -1) == [b"a request"]
    bus.rpush(names.own_requests("tiny", "wkr-1"), b"another")
    desk.leave()
    assert bus.lrange(names.requests("tiny"), 0, -1) == [b"another", b"a request"]


def test_it_says_what_it_holds_and_how_loaded_it_is(
    desk: InferenceDesk, room: Room, bus: redis.Redis, valkey_url: str
) -> None:
    room.enqueue()
    room.run(room.claim())
    (version,) = room.versions()
    held = stream("req-1", tokens=4, version=version)
    send(valkey_url, held)
    send(valkey_url, stream("req-2", tokens=4))
    desk.receive(0, accept=True)
    assert held.adapter is not None
    assert bus.smembers(names.held("tiny", "wkr-1")) == {name_of(held.adapter).encode()}
    assert bus.hgetall(names.load("tiny")) == {b"wkr-1": b"-2"}
    while desk.busy:
        desk.step()
    desk.receive(0, accept=True)
    assert bus.hgetall(names.load("tiny")) == {b"wkr-1": b"-4"}


def test_closing_tells_everybody(desk: InferenceDesk, valkey_url: str) -> None:
    send(valkey_url, stream("req-1", tokens=400))
    desk.receive(0, accept=True)
    desk.step()
    desk.close()
    *_, last = read(valkey_url, "req-1")
    assert isinstance(last, ErrorEvent)
    assert (last.status, last.code) == (503, "worker_stopping")


def test_published_weights_are_served_and_bad_ones_refused(desk: InferenceDesk, room: Room, valkey_url: str) -> None:
    room.enqueue()
    room.run(room.claim())
    (version,) = room.versions()
    with room.database.write() as session:
        damaged = write_blob(session, room.tenant, b"soon to be damaged")
        session.flush()
        session.get_one(BlobChunk, (damaged.id, 0)).data = b"damaged"
        unreadable = write_blob(session, room.tenant, b"no safetensors")
    good = stream("req-good", tokens=4, version=version)
    assert good.adapter is not None

    def changed(**changes: str) -> AdapterRef:
        return AdapterRef.model_validate(good.adapter.model_dump() | changes)

    bad = {
        "req-gone": (changed(version_id="v2", weights_id="blob-0"), 404, "adapter_not_found"),
        "req-foreign": (changed(tenant_id="tnt-0"), 404, "adapter_not_found"),
        "req-damaged": (changed(version_id="v3", weights_id=damaged.id), 500, "adapter_unusable"),
        "req-format": (changed(version_id="v4", weights_id=unreadable.id), 500, "adapter_unusable"),
    }
    send(valkey_url, good)
    for request_id, (adapter, _, _) in bad.items():
        send(valkey_url, good.model_copy(update={"id": request_id, "adapter": adapter}))
    work(desk)
    assert isinstance(read(valkey_url, "req-good")[-1], DoneEvent)
    for request_id, (_, status, code) in bad.items():
        (error,) = read(valkey_url, request_id)
        assert isinstance(error, ErrorEvent)
        assert (error.status, error.code) == (status, code)
