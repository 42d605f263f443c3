"""The job desk: it claims jobs and lets them share the worker as their tenants' weights say."""

from collections.abc import Iterator

import pytest

from app.bus.connection import connect
from app.db.repositories import tenants
from app.db.session import Database
from tests.faults.jobs import STEPS
from tests.unit.runtime.conftest import Room
from workers.runtime.heartbeat import Heartbeat
from workers.runtime.job_desk import JobDesk


@pytest.fixture
def desk(room: Room, sqlite_url: str, valkey_url: str) -> Iterator[JobDesk]:
    """A desk for two jobs, whose heartbeat is silent."""
    bus = connect(valkey_url)
    heartbeat = Heartbeat(Database(sqlite_url), bus, worker_id="wkr-1", base_model="tiny", seconds=60, lease_seconds=60)
    yield JobDesk(
        room.room, heartbeat, bus, slots=[1, 2], worker_id="wkr-1", lease_seconds=60, max_attempts=3, poll_seconds=1
    )
    bus.close()


def steps_done(room: Room, job_id: str) -> int:
    progress = room.job(job_id).progress
    return 0 if progress is None else int(str(progress["step"]))


def test_runs_side_by_side_share_the_worker_by_their_tenants_weight(
    room: Room, desk: JobDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.runtime.recorder.MAX_STEPS", 1)
    heavy = room.enqueue()
    with room.database.write() as session:
        tenants.set_limits(session, room.tenant, weight=4.0)
        room.tenant = tenants.create(session, "globex").id
    light = room.enqueue()
    for _ in range(2):
        desk.look(woken=True)
    desk.limit_tokens(1)  # A pass has one run's work, so they take turns.
    while room.job(heavy).status == "running":
        desk.step()
    assert room.job(heavy).status == "succeeded"
    assert 0 < steps_done(room, light) <= STEPS // 2
    while desk.busy:
        desk.step()
    assert steps_done(room, light) == STEPS
