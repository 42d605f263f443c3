"""What a worker tells of itself while it serves and trains."""

from collections.abc import Iterator

import pytest

from app.bus.connection import connect
from app.contracts.workers import ServingCounts, WorkerState
from app.db.session import Database
from tests.faults.streams import stream
from tests.unit.runtime.conftest import Room
from workers.inference.adapter_cache import AdapterCache
from workers.inference.engine import Engine
from workers.inference.prefixes import PrefixStore
from workers.inference.scheduler import Limits
from workers.runtime.adapter_loader import AdapterLoader
from workers.runtime.heartbeat import Heartbeat
from workers.runtime.job_desk import JobDesk
from workers.runtime.worker_state import state_of


@pytest.fixture
def jobs(room: Room, sqlite_url: str, valkey_url: str) -> Iterator[JobDesk]:
    """A desk for two jobs, whose heartbeat is silent."""
    bus = connect(valkey_url)
    heartbeat = Heartbeat(Database(sqlite_url), bus, worker_id="wkr-1", base_model="tiny", seconds=60, lease_seconds=60)
    yield JobDesk(
        room.room, heartbeat, bus, slots=[1, 2], worker_id="wkr-1", lease_seconds=60, max_attempts=3, poll_seconds=1
    )
    bus.close()


def test_slots_places_requests_and_versions_are_told(room: Room, jobs: JobDesk) -> None:
    room.enqueue()
    jobs.look(woken=True)
    while jobs.busy:
        jobs.step()
    (version,) = room.versions()
    loader = AdapterLoader(room.database, room.room.info)
    adapters = AdapterCache([0], loader, room.room.bank)
    prefixes = PrefixStore(0)
    engine = Engine(room.room.model, room.room.info, adapters, prefixes, limits=Limits(3))
    empty = WorkerState(
        training_slots=2,
        training_slots_free=2,
        serving_places=3,
        serving_places_free=3,
        open_requests=0,
        adapters=[],
    )
    assert state_of(engine, adapters, prefixes, jobs) == empty
    room.enqueue()
    jobs.look(woken=True)
    engine.submit(stream("req-1", tokens=3, n=2, version=version))
    engine.submit(stream("req-2", tokens=3, n=2, version=version))
    while not adapters.versions():
        engine.step()
    full = {
        "training_slots_free": 1,
        "serving_places_free": 1,
        "open_requests": 2,
        "adapters": [(version.tenant_id, version.adapter_id, version.id)],
        "counts": ServingCounts(adapter_loads=1),
    }
    assert state_of(engine, adapters, prefixes, jobs) == empty.model_copy(update=full)
    while engine.busy:
        engine.step()
    assert state_of(engine, adapters, prefixes, jobs).serving_places_free == 3
    jobs.abandon()
    loader.close()


def test_what_the_caches_have_done_is_told(room: Room, jobs: JobDesk) -> None:
    room.enqueue()
    jobs.look(woken=True)
    while jobs.busy:
        jobs.step()
    (version,) = room.versions()
    loader = AdapterLoader(room.database, room.room.info)
    adapters = AdapterCache([0], loader, room.room.bank)
    prefixes = PrefixStore(100_000)
    engine = Engine(room.room.model, room.room.info, adapters, prefixes, limits=Limits(3))
    for number in range(3):
        prompt = {"prompt_token_ids": list(range(20, 60))}
        engine.submit(stream(f"req-{number}", tokens=2, version=version).model_copy(update=prompt))
        while engine.busy:
            engine.step()
    # Of 40 equal tokens the last must be run again.
    assert state_of(engine, adapters, prefixes, jobs).counts == ServingCounts(
        adapter_hits=2, adapter_loads=1, prefix_hits=2, prefix_saved_tokens=78
    )
    loader.close()
