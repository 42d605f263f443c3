"""The heartbeat: it keeps leases and presence alive, and passes on what the database says about the job."""

import time
from collections.abc import Callable, Iterator

import pytest
import redis

from app.bus import names
from app.bus.connection import connect
from app.contracts.workers import WorkerState
from app.db.repositories import base_models, jobs, pauses, workers
from app.db.session import Database
from app.db.tables import WorkerRow
from tests.unit.runtime.conftest import Room
from workers.runtime.heartbeat import Heartbeat

BEAT = 0.05
STATE = WorkerState(
    training_slots=2,
    training_slots_free=1,
    serving_places=4,
    serving_places_free=3,
    open_requests=1,
    adapters=[("tnt-1", "adp-1", "ver-1")],
)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds, for at most ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(BEAT / 5)


def beating(room: Room, bus: redis.Redis, sqlite_url: str) -> Heartbeat:
    """Return a started heartbeat of a registered worker."""
    with room.database.write() as session:
        base_models.upsert(session, room.room.info)
        workers.register(session, worker_id="wkr-1", base_model="tiny", device="cpu")
    heartbeat = Heartbeat(
        Database(sqlite_url), bus, worker_id="wkr-1", base_model="tiny", seconds=BEAT, lease_seconds=60
    )
    heartbeat.start(lambda: STATE)
    return heartbeat


@pytest.fixture
def heartbeat(room: Room, valkey_url: str, sqlite_url: str) -> Iterator[Heartbeat]:
    """A heartbeat with a bus."""
    heartbeat = beating(room, connect(valkey_url), sqlite_url)
    yield heartbeat
    heartbeat.stop()


def worker_beat(room: Room) -> float:
    """Return when the worker was last heard of."""
    with room.database.read() as session:
        return session.get_one(WorkerRow, "wkr-1").heartbeat_at


def test_it_keeps_worker_presence_and_lease_alive(room: Room, heartbeat: Heartbeat, valkey_url: str) -> None:
    job_id = room.enqueue()
    job = room.claim(lease_seconds=0)
    before, expired = worker_beat(room), room.job(job_id).lease_expires_at
    assert expired is not None
    watch = heartbeat.watch(job.lease)
    wait_for(lambda: (room.job(job_id).lease_expires_at or 0) > expired + 50)
    wait_for(lambda: worker_beat(room) > before)
    with connect(valkey_url) as r:
        wait_for(lambda: r.zrange(names.presence("tiny"), 0, -1) == [b"wkr-1"])
        seconds, microseconds = r.time()
        left = r.zscore(names.presence("tiny"), "wkr-1") - (1000 * seconds + microseconds / 1000)
        assert left <= 3 * BEAT * 1000
    assert not watch.cancel_requested
    assert not watch.lost


def test_it_tells_what_the_worker_holds(room: Room, heartbeat: Heartbeat) -> None:
    def told() -> WorkerState | None:
        with room.database.read() as session:
            row = session.get_one(WorkerRow, "wkr-1")
            fields = {name: getattr(row, name) for name in WorkerState.model_fields}
        return WorkerState.model_validate(fields)

    wait_for(lambda: told() == STATE)


def test_it_passes_on_a_cancellation(room: Room, heartbeat: Heartbeat) -> None:
    job_id = room.enqueue()
    watch = heartbeat.watch(room.claim().lease)
    with room.database.write() as session:
        jobs.request_cancel(session, room.tenant, job_id)
    wait_for(lambda: watch.cancel_requested)


def test_it_passes_on_a_pause_and_its_withdrawal(room: Room, heartbeat: Heartbeat) -> None:
    job_id = room.enqueue()
    watch = heartbeat.watch(room.claim().lease)
    with room.database.write() as session:
        pauses.request(session, room.tenant, job_id)
    wait_for(lambda: watch.pause_requested)
    with room.database.write() as session:
        pauses.resume(session, room.tenant, job_id)
    wait_for(lambda: not watch.pause_requested)


def test_it_notices_a_lost_lease(room: Room, heartbeat: Heartbeat) -> None:
    room.enqueue()
    lost = room.claim(lease_seconds=0).lease
    room.claim("wkr-2")
    watch = heartbeat.watch(lost)
    wait_for(lambda: watch.lost)


def test_it_beats_on_without_redis(room: Room, sqlite_url: str) -> None:
    heartbeat = beating(room, connect("redis://127.0.0.1:1"), sqlite_url)
    try:
        before = worker_beat(room)
        wait_for(lambda: worker_beat(room) > before)
    finally:
        heartbeat.stop()
