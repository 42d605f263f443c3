"""How a job ends: published, rolled back, failed, cancelled, given back or lost, also while the database is away."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count, islice
from typing import Any

import pytest
import torch
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError

from app.db import queue
from app.db.blobs import read_blob
from app.db.repositories import jobs, pauses
from app.db.tables import BlobChunk, Job, JobCheckpoint, JobSnapshot
from tests.faults.jobs import STEPS, config_of
from tests.unit.runtime.conftest import SLOT, Room
from workers.lora.adapter_file import from_peft
from workers.runtime.heartbeat import LeaseWatch


def interrupt_after(room: Room, steps: int) -> str:
    """Run a new job for some steps and drop it, as a killed worker would; return its id."""
    job_id = room.enqueue()
    job = room.claim(lease_seconds=0)
    slices = room.slices(job, LeaseWatch(job.lease))
    for _ in slices:
        with room.database.read() as session:
            reached = session.scalar(select(JobSnapshot.step).where(JobSnapshot.step >= steps))
        if reached:
            break
    slices.close()
    return job_id


def failing(times: int, then: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that finds the database away that many times before it works."""
    left = [times]

    def call(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OperationalError("COMMIT", {}, Exception("connection refused"))
        return then(*arguments)

    return call


def test_a_job_publishes_its_adapter_with_history_and_checkpoints(room: Room) -> None:
    job_id = room.enqueue()
    room.run(room.claim())
    job, (version,) = room.job(job_id), room.versions()
    assert job.status == "succeeded"
    assert (job.result_version_id, version.metrics) == (version.id, job.result)
    assert job.result is not None
    assert job.result["steps"] == STEPS
    assert job.progress is not None
    assert job.progress["step"] == STEPS
    with room.database.read() as session:
        checkpoints, _ = jobs.checkpoints(session, room.tenant, job_id, order="asc")
        last = read_blob(session, room.tenant, checkpoints[-1].weights_id)
        events, _ = jobs.events(session, room.tenant, job_id, limit=100, order="asc")
        assert last == read_blob(session, room.tenant, version.weights_id)
    assert [checkpoint.step for checkpoint in checkpoints] == [STEPS // 2, STEPS]
    metrics = [event for event in events if event.type == "metrics"]
    assert [event.data["step"] for event in metrics] == list(range(1, STEPS + 1))
    assert metrics[2].message == f"Step 3/{STEPS}: training loss={metrics[2].data['loss']:.4f}"
    with pytest.raises(KeyError):
        room.room.bank.parameters(SLOT)


def test_continuing_starts_from_the_parents_weights(room: Room) -> None:
    room.enqueue()
    room.run(room.claim())
    (parent,) = room.versions()
    job_id = room.enqueue(config_of(epochs=1, learning_rate=1e-9), parent=parent)
    room.run(room.claim())
    first, second = room.versions()
    assert (second.version, second.parent_version, second.job_id) == (2, 1, job_id)
    with room.database.read() as session:
        adapters = [
            from_peft(version.config, read_blob(session, room.tenant, version.weights_id), room.room.info)
            for version in (first, second)
        ]
    for name, (a_RK, b_NR) in adapters[0].tensors.items():
        assert (adapters[1].tensors[name][0] - a_RK).abs().max() < 1e-6
        assert (adapters[1].tensors[name][1] - b_NR).abs().max() < 1e-6
        assert b_NR.abs().max() > 1e-3


def test_a_rolled_back_run_succeeds_without_a_version(room: Room) -> None:
    job_id = room.enqueue(config_of(tolerance=0.01))
    room.run(room.claim())
    job = room.job(job_id)
    assert (job.status, job.result_version_id, room.versions()) == ("succeeded", None, [])
    assert job.result is not None
    assert job.result["rolled_back"] is True
    assert "perplexity" in str(job.result["rollback_reason"])


def test_the_retention_file_reaches_the_gate(room: Room) -> None:
    strict = config_of().rollback.model_copy(update={"retention_tolerance": 0.01})
    job_id = room.enqueue(config_of().model_copy(update={"rollback": strict}), retention=b'{"text": "never forget"}\n')
    room.run(room.claim())
    result = room.job(job_id).result
    assert result is not None
    assert float(str(result["retention_before"])) > 1
    assert str(result["rollback_reason"]).startswith("the model forgets: retention-file perplexity")
    assert room.versions() == []


def test_a_run_that_goes_back_says_so(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count(1)

    nll = room.room.model.nll

    def spoilt(*arguments: Any) -> Any:
        return nll(*arguments) * (float("nan") if torch.is_grad_enabled() and next(calls) in {2, 3, 4} else 1.0)

    monkeypatch.setattr(room.room.model, "nll", spoilt)
    job_id = room.enqueue(config_of(learning_rate=1e-2))
    room.run(room.claim())
    with room.database.read() as session:
        events, _ = jobs.events(session, room.tenant, job_id, limit=100, order="asc")
    (warning,) = [event.message for event in events if event.level == "warn"]
    assert warning == (
        "Steps up to 4 were not finite: went back to the last good state (time 1), on with 0.5 times the learning rate"
    )
    assert room.job(job_id).status == "succeeded"
    assert len(room.versions()) == 1


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (b'{"messages": []}\n', "invalid_training_data", "messages"),
        (b'{"text": "x"}\n', "no_trainable_tokens", "token"),
    ],
)
def test_a_failing_job_says_why(room: Room, data: bytes, code: str, message: str) -> None:
    job_id = room.enqueue(data=data)
    room.run(room.claim())
    job = room.job(job_id)
    assert job.status == "failed"
    assert job.error is not None
    assert job.error["code"] == code
    assert message in str(job.error["message"])
    assert room.versions() == []


def test_a_cancelled_job_ends_within_one_slice(room: Room) -> None:
    job_id = room.enqueue()
    job = room.claim()
    watch = LeaseWatch(job.lease)
    slices = room.slices(job, watch)
    list(islice(slices, 6))
    watch.cancel_requested = True
    assert list(slices) == []
    assert room.job(job_id).status == "cancelled"
    assert room.versions() == []


def test_a_lost_lease_drops_the_work_and_writes_nothing(room: Room) -> None:
    job_id = room.enqueue()
    job = room.claim(lease_seconds=0)
    watch = LeaseWatch(job.lease)
    slices = room.slices(job, watch)
    list(islice(slices, 6))
    taken = room.claim("wkr-2")
    history = room.messages(job_id)
    watch.lost = True
    assert list(slices) == []
    assert room.messages(job_id) == history
    assert (room.job(job_id).status, room.job(job_id).lease_token) == ("running", taken.lease.token)


def test_the_fence_refuses_a_worker_that_was_not_told(room: Room) -> None:
    job_id = room.enqueue()
    slow = room.claim(lease_seconds=0)
    fast = room.claim("wkr-2")
    room.run(fast)
    (version,) = room.versions()
    result = room.job(job_id).result
    room.run(slow)
    assert [v.id for v in room.versions()] == [version.id]
    assert room.job(job_id).result == result


def test_stopping_before_the_first_step_gives_the_job_back_at_once(room: Room) -> None:
    job_id = room.enqueue()
    room.room.stopping.set()
    room.run(room.claim())
    job = room.job(job_id)
    assert (job.status, job.attempts) == ("queued", 0)
    with room.database.read() as session:
        assert session.scalars(select(JobSnapshot)).all() == []


def test_a_damaged_snapshot_costs_some_steps_and_not_the_job(room: Room) -> None:
    job_id = interrupt_after(room, 8)
    with room.database.write() as session:
        newest = session.scalars(select(JobSnapshot).order_by(JobSnapshot.step.desc())).first()
        assert newest is not None
        session.execute(update(BlobChunk).where(BlobChunk.blob_id == newest.tensors_id).values(data=b"damaged"))
    room.run(room.claim())
    assert "Resumed after step 4" in room.messages(job_id)
    assert room.job(job_id).status == "succeeded"


def test_a_snapshot_of_another_run_is_not_used(room: Room) -> None:
    job_id = interrupt_after(room, 4)
    with room.database.write() as session:
        session.execute(update(Job).values(config=config_of(learning_rate=2e-2).model_dump()))
    room.run(room.claim())
    assert not any(message.startswith("Resumed") for message in room.messages(job_id))
    assert room.job(job_id).status == "succeeded"


def test_training_goes_on_while_the_database_is_away(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = room.enqueue()
    job = room.claim()
    monkeypatch.setattr(queue, "save_snapshot", failing(1, queue.save_snapshot))
    monkeypatch.setattr(queue, "save_checkpoint", failing(1, queue.save_checkpoint))
    monkeypatch.setattr(queue, "record_progress", failing(2, queue.record_progress))
    monkeypatch.setattr(queue, "finish_succeeded", failing(3, queue.finish_succeeded))
    monkeypatch.setattr("workers.runtime.recorder.MAX_STEPS", 3)
    pauses = room.run(job)
    assert [pause for pause in pauses if pause] == [0.1, 0.2, 0.4]
    assert room.job(job_id).status == "succeeded"
    assert len(room.versions()) == 1
    steps = [message for message in room.messages(job_id) if message.startswith("Step ")]
    assert len(steps) == STEPS
    with room.database.read() as session:
        assert session.scalars(select(JobCheckpoint.step)).all() == [STEPS]


def test_an_unanswered_commit_takes_effect_once(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = queue.finish_succeeded
    answers = []

    def commit_and_lose_the_answer(*arguments: Any) -> Any:
        answers.append(commit(*arguments))
        raise OperationalError("COMMIT", {}, Exception("connection reset"))

    monkeypatch.setattr(queue, "finish_succeeded", commit_and_lose_the_answer)
    job_id = room.enqueue()
    room.run(room.claim())
    assert len(answers) == 1
    assert room.job(job_id).status == "succeeded"
    assert [version.id for version in room.versions()] == [answers[0].id]


def test_snapshots_are_taken_at_the_interval(room: Room) -> None:
    room.room = replace(room.room, snapshot_every_steps=5)
    interrupt_after(room, 10)
    with room.database.read() as session:
        assert session.scalars(select(JobSnapshot.step).order_by(JobSnapshot.step)).all() == [5, 10]


def pause_after(room: Room, job_id: str, step: int) -> list[str]:
    """Run the job's next attempt and pause it once it has done `step`; return what its history says of that attempt."""
    before = len(room.messages(job_id))
    job = room.claim()
    watch = LeaseWatch(job.lease)
    for _ in room.slices(job, watch):
        done = room.job(job_id).progress
        if done is not None and int(str(done["step"])) >= step and not room.job(job_id).pause_requested:
            with room.database.write() as session:
                pauses.request(session, room.tenant, job_id)
            watch.hear(queue.heartbeat(room.database, job.lease, 60))
    return room.messages(job_id)[before:]


def test_a_paused_job_stops_after_its_step_and_goes_on_as_if_it_never_had(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.runtime.recorder.MAX_STEPS", 1)
    room.enqueue()
    room.run(room.claim())
    job_id = room.enqueue()
    for step in (1, 5):
        told = pause_after(room, job_id, step)
        assert room.job(job_id).status == "paused"
        assert [line.split(":")[0] for line in told if line.startswith("Step ")][-1] == f"Step {step + 1}/{STEPS}"
        assert told[-2:] == ["Training paused", "Job paused"]
        with room.database.write() as session:
            assert pauses.resume(session, room.tenant, job_id) is not None
    room.run(room.claim())
    assert [m for m in room.messages(job_id) if m.startswith("Resumed")] == [f"Resumed after step {s}" for s in (2, 6)]
    unbroken, paused = room.versions()
    assert paused.sha256 == unbroken.sha256
    assert room.job(job_id).attempts == 1


def test_a_pause_before_the_first_step_gives_the_job_back_at_once(room: Room) -> None:
    job_id = room.enqueue()
    job = room.claim()
    with room.database.write() as session:
        pauses.request(session, room.tenant, job_id)
    list(room.slices(job, LeaseWatch(job.lease, pause_requested=True)))
    assert (room.job(job_id).status, room.job(job_id).progress) == ("paused", None)


def test_storing_progress_brings_word_of_a_pause(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.runtime.recorder.MAX_STEPS", 1)
    job_id = room.enqueue()
    job = room.claim()
    with room.database.write() as session:
        pauses.request(session, room.tenant, job_id)
    list(room.slices(job, LeaseWatch(job.lease)))
    progress = room.job(job_id).progress
    assert progress is not None
    assert (room.job(job_id).status, progress["step"]) == ("paused", 1)
