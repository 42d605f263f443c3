"""The job desk with the real queue: how many jobs it takes, how they share the worker, and how each leaves."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from sqlalchemy import update

from app.bus.connection import connect
from app.contracts.training import JobConfig
from app.db.repositories import jobs, pauses, tenants
from app.db.session import Database
from app.db.tables import AdapterVersion, Job, db_now
from tests.faults.jobs import STEPS, config_of
from tests.unit.runtime.conftest import Room
from workers.runtime.heartbeat import Heartbeat
from workers.runtime.job_desk import JobDesk
from workers.training.memory import TrainingMemory, run_bytes

SLOTS = [1, 2, 3]


@pytest.fixture
def new_desk(
    room: Room, sqlite_url: str, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], JobDesk]]:
    """Return a function that opens a desk for three jobs, with a silent heartbeat and every step written at once."""
    monkeypatch.setattr("workers.runtime.recorder.MAX_STEPS", 1)
    bus, beats = connect(valkey_url), Database(sqlite_url)
    heartbeat = Heartbeat(beats, bus, worker_id="wkr-1", base_model="tiny", seconds=60, lease_seconds=60)

    def desk() -> JobDesk:
        return JobDesk(
            room.room, heartbeat, bus, slots=SLOTS, worker_id="wkr-1", lease_seconds=60, max_attempts=3, poll_seconds=1
        )

    yield desk
    beats.dispose()
    bus.close()


def fill(desk: JobDesk) -> int:
    """Let the desk claim what it can; return how many jobs run then."""
    for _ in range(len(SLOTS) + 1):
        desk.look(woken=True)
    return desk.running


def drive(desk: JobDesk, until: Callable[[], bool] = lambda: False) -> None:
    """Work until nothing runs any more, or until `until` holds."""
    while desk.busy and not until():
        desk.step()


def steps_done(room: Room, job_id: str) -> int:
    """Return the steps that the job has reported."""
    progress = room.job(job_id).progress
    return 0 if progress is None else int(str(progress["step"]))


def configs() -> list[JobConfig]:
    """Three runs that differ."""
    return [config_of(), config_of(learning_rate=5e-3), config_of(epochs=1, learning_rate=2e-2)]


def alone(room: Room) -> list[AdapterVersion]:
    """Run the three one after another, each by itself; return what they publish."""
    for config in configs():
        room.enqueue(config)
        room.run(room.claim())
    return room.versions()


def assert_same(ours: AdapterVersion, expected: AdapterVersion) -> None:
    """Hold what a run beside others reports to what it reports by itself."""
    assert ours.metrics["losses"] == pytest.approx(expected.metrics["losses"], abs=1e-5)
    for name in ("perplexity_after", "grad_norm"):
        assert ours.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-4)
    assert ours.metrics["steps"] == expected.metrics["steps"]


def test_jobs_side_by_side_publish_what_each_publishes_alone(room: Room, new_desk: Callable[[], JobDesk]) -> None:
    expected, desk = alone(room), new_desk()
    ids = [room.enqueue(config) for config in (*configs(), config_of())]
    assert fill(desk) == 3
    assert not desk.has_room
    assert room.job(ids[3]).status == "queued"
    drive(desk, lambda: desk.has_room)
    assert room.job(ids[2]).status == "succeeded", "the shortest"
    assert fill(desk) == 3
    drive(desk)
    versions = {version.job_id: version for version in room.versions()[3:]}
    assert set(versions) == set(ids)
    for job_id, version in zip(ids[:3], expected, strict=True):
        assert_same(versions[job_id], version)
    assert [room.job(job_id).status for job_id in ids] == ["succeeded"] * 4


def test_no_job_is_claimed_beyond_the_memory_there_is(room: Room, new_desk: Callable[[], JobDesk]) -> None:
    needed = run_bytes(room.room.info, config_of())
    memory = TrainingMemory(room.room.info, 2 * needed + needed // 2)
    room.room = replace(room.room, memory=memory)
    desk, ids = new_desk(), [room.enqueue() for _ in range(3)]
    lora = config_of().lora
    assert lora is not None
    giant = room.enqueue(config_of().model_copy(update={"lora": lora.model_copy(update={"rank": 32})}))
    assert fill(desk) == 2
    assert [room.job(job_id).status for job_id in ids] == ["running", "running", "queued"]
    most = 0
    while desk.busy:
        desk.step()
        desk.look(woken=True)
        most = max(most, memory.taken if room.job(giant).status == "queued" else 0)
    assert most == 2 * needed
    assert [room.job(job_id).status for job_id in (*ids, giant)] == ["succeeded"] * 3 + ["failed"]
    error = room.job(giant).error
    assert error is not None
    assert error["code"] == "insufficient_memory"
    assert memory.taken == 0


@pytest.mark.parametrize("ending", ["cancelled", "paused"])
def test_a_job_that_is_ended_midway_leaves_within_a_step_and_the_others_untouched(
    room: Room, new_desk: Callable[[], JobDesk], ending: str
) -> None:
    expected, desk = alone(room), new_desk()
    ids = [room.enqueue(config) for config in configs()]
    fill(desk)
    drive(desk, lambda: steps_done(room, ids[1]) == 3)
    with room.database.write() as session:
        ask = jobs.request_cancel if ending == "cancelled" else pauses.request
        ask(session, room.tenant, ids[1])
    drive(desk, lambda: desk.running < 3)
    assert (room.job(ids[1]).status, steps_done(room, ids[1])) == (ending, 4)
    assert steps_done(room, ids[0]) < STEPS
    if ending == "paused":
        with room.database.write() as session:
            pauses.resume(session, room.tenant, ids[1])
        assert fill(desk) == 3
    drive(desk)
    published = {version.job_id: version for version in room.versions()[3:]}
    assert set(published) == set(ids) - ({ids[1]} if ending == "cancelled" else set())
    for job_id, version in zip(ids, expected, strict=True):
        if job_id in published:
            assert_same(published[job_id], version)


def test_a_failing_job_ends_alone(room: Room, new_desk: Callable[[], JobDesk]) -> None:
    expected, desk = alone(room), new_desk()
    first, bad, third = configs()
    ids = [room.enqueue(first), room.enqueue(bad, data=b'{"messages": []}\n'), room.enqueue(third)]
    assert fill(desk) == 3
    drive(desk)
    assert [room.job(job_id).status for job_id in ids] == ["succeeded", "failed", "succeeded"]
    for ours, version in zip(room.versions()[3:], (expected[2], expected[0]), strict=True):
        assert_same(ours, version)


def test_a_job_that_is_claimed_again_while_its_lost_attempt_still_runs_takes_effect_once(
    room: Room, new_desk: Callable[[], JobDesk]
) -> None:
    desk, job_id = new_desk(), room.enqueue()
    beside = room.enqueue(configs()[1])
    fill(desk)
    drive(desk, lambda: steps_done(room, job_id) == 5)
    with room.database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(lease_expires_at=db_now() - 1))
    desk.look(woken=True)
    assert desk.running == 3
    drive(desk)
    assert sorted(str(version.job_id) for version in room.versions()) == sorted([job_id, beside])
    assert room.job(job_id).status == "succeeded"
    assert room.job(job_id).attempts == 2
    assert desk.has_room


def test_stopping_gives_every_job_back_after_its_step(room: Room, new_desk: Callable[[], JobDesk]) -> None:
    desk, ids = new_desk(), [room.enqueue(config) for config in configs()]
    fill(desk)
    drive(desk, lambda: steps_done(room, ids[0]) == 3)
    before = [steps_done(room, job_id) for job_id in ids]
    room.room.stopping.set()
    drive(desk)
    assert [room.job(job_id).status for job_id in ids] == ["queued"] * 3
    assert all(steps_done(room, job_id) <= step + 1 for job_id, step in zip(ids, before, strict=True))
    room.room.stopping.clear()
    fill(desk)
    drive(desk)
    assert [room.job(job_id).status for job_id in ids] == ["succeeded"] * 3
    assert all(any(m.startswith("Resumed after") for m in room.messages(job_id)) for job_id in ids)


def test_jobs_that_do_not_come_to_a_steps_end_are_abandoned(room: Room, new_desk: Callable[[], JobDesk]) -> None:
    desk, ids = new_desk(), [room.enqueue() for _ in range(3)]
    fill(desk)
    drive(desk, lambda: desk.pass_tokens > 0)
    desk.abandon()
    assert not desk.busy
    assert [room.job(job_id).status for job_id in ids] == ["queued"] * 3
    for slot in SLOTS:
        with pytest.raises(KeyError):
            room.room.bank.parameters(slot)


def test_runs_side_by_side_share_the_worker_by_their_tenants_weight(
    room: Room, new_desk: Callable[[], JobDesk]
) -> None:
    desk, heavy = new_desk(), room.enqueue()
    with room.database.write() as session:
        tenants.set_limits(session, room.tenant, weight=4.0)
        room.tenant = tenants.create(session, "globex").id
    light = room.enqueue()
    fill(desk)
    desk.limit_tokens(1)  # A pass has one run's work, so they take turns.
    drive(desk, lambda: room.job(heavy).status != "running")
    assert room.job(heavy).status == "succeeded"
    assert 0 < steps_done(room, light) <= STEPS // 2
    drive(desk)
    assert steps_done(room, light) == STEPS
