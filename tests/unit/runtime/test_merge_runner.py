"""How a merge ends: a file, a refusal, cancelled, given back or lost, also while the database is away."""

import threading
from collections.abc import Callable
from itertools import islice
from typing import Any, BinaryIO

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from app.contracts.merge import MergeConfig
from app.contracts.training import LoRAConfig
from app.db import queue
from app.db.blobs import CHUNK_BYTES, read_blob
from app.db.queue import ClaimedMerge
from app.db.repositories import adapters, jobs, pauses
from app.db.tables import BlobChunk, File
from tests.unit.runtime.conftest import Room
from workers.lora.adapter_file import to_peft
from workers.lora.new_adapter import new_lora
from workers.runtime import merge_runner
from workers.runtime.heartbeat import LeaseWatch
from workers.runtime.merge_runner import CHUNKS_AT_ONCE, run_merge

CONTENT = b"0123456789abcdef" * (CHUNK_BYTES // 16) * (CHUNKS_AT_ONCE + 1) + b"end"


def enqueue(room: Room, *, max_bytes: int = 1 << 30, config: dict[str, object] | None = None) -> str:
    """Queue a merge of a new version and return the job's id."""
    adapter = new_lora(room.room.info, LoRAConfig(rank=2, alpha=4, targets=["q_proj"], seed=1))
    peft, weights = to_peft(adapter, room.room.info)
    with room.database.write() as session:
        version = adapters.add_uploaded_version(
            session, room.tenant, name="support", base_model="tiny", weights=weights, config=config or peft, metrics={}
        )
        return jobs.create(
            session, room.tenant, kind="merge", model="support@1", base_model="tiny", adapter_name="support",
            adapter_id=version.adapter_id, parent_version_id=version.id, training_blob_id=version.weights_id,
            config=MergeConfig(format="gguf", version=1, max_bytes=max_bytes), request={}, trainable_parameters=0,
            optimizer_bytes=0,
        ).id  # fmt: skip


def claim(room: Room, worker_id: str = "wkr-1", lease_seconds: float = 60) -> ClaimedMerge:
    job = queue.claim(
        room.database, worker_id=worker_id, base_model="tiny", lease_seconds=lease_seconds, max_attempts=5
    )
    assert isinstance(job, ClaimedMerge)
    return job


def run(room: Room, job: ClaimedMerge) -> list[float]:
    return list(run_merge(room.room, job, LeaseWatch(job.lease)))


def files(room: Room) -> list[File]:
    with room.database.read() as session:
        return list(session.scalars(select(File)))


def chunks(room: Room) -> int:
    with room.database.read() as session:
        return session.scalar(select(func.count()).select_from(BlobChunk)) or 0


Write = Callable[[BinaryIO], object]


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch) -> Callable[[Write], None]:
    """Replace what writes the merged model by a function of the test's."""

    def replace(write: Write) -> None:
        monkeypatch.setattr(merge_runner, "export_merged", lambda base, adapter, form, sink: write(sink))

    return replace


def test_what_is_exported_becomes_a_file(room: Room, export: Callable[[Write], None]) -> None:
    export(lambda sink: sink.write(CONTENT))
    job_id = enqueue(room)
    run(room, claim(room))
    (file,) = files(room)
    job = room.job(job_id)
    assert (job.status, job.result and job.result["file"]) == ("succeeded", file.id)
    assert (file.filename, file.purpose, file.bytes) == ("support-1.gguf", "merge-output", len(CONTENT))
    with room.database.read() as session:
        assert read_blob(session, room.tenant, file.blob_id) == CONTENT
    assert room.messages(job_id)[2:] == [
        "Merging version 1 of support into tiny as gguf (attempt 1)",
        f"Job succeeded: {file.id} holds support-1.gguf, {len(CONTENT)} bytes",
    ]


def test_a_model_beyond_its_cap_fails_the_job(room: Room, export: Callable[[Write], None]) -> None:
    export(lambda sink: sink.write(CONTENT))
    job_id = enqueue(room, max_bytes=len(CONTENT) - 1)
    run(room, claim(room))
    job = room.job(job_id)
    assert (job.status, job.error and job.error["code"]) == ("failed", "checkpoint_too_large")
    assert files(room) == []


def test_a_version_that_does_not_fit_the_base_fails_the_job(room: Room, export: Callable[[Write], None]) -> None:
    export(lambda sink: sink.write(CONTENT))
    job_id = enqueue(room, config={"peft_type": "LORA", "r": 3, "lora_alpha": 4, "target_modules": ["q_proj"]})
    run(room, claim(room))
    job = room.job(job_id)
    assert job.error is not None
    assert (job.status, job.error["code"]) == ("failed", "adapter_unusable")
    assert "has shape" in str(job.error["message"])


@pytest.fixture
def endless(export: Callable[[Write], None]) -> threading.Event:
    """Let the export write until it is stopped; the event tells that it has begun."""
    began = threading.Event()

    def write(sink: BinaryIO) -> None:
        while True:
            sink.write(b"more")
            began.set()

    export(write)
    return began


def test_a_cancelled_merge_stops_exporting(room: Room, endless: threading.Event) -> None:
    job_id, job = enqueue(room), claim(room)
    before = chunks(room)
    watch = LeaseWatch(job.lease)
    slices = run_merge(room.room, job, watch)
    next(slices)
    assert endless.wait(10)
    watch.cancel_requested = True
    assert list(slices) == []
    assert (room.job(job_id).status, files(room), chunks(room)) == ("cancelled", [], before)


def test_a_paused_merge_begins_anew_when_it_is_resumed(room: Room, endless: threading.Event) -> None:
    job_id, job = enqueue(room), claim(room)
    with room.database.write() as session:
        pauses.request(session, room.tenant, job_id)
    assert list(run_merge(room.room, job, LeaseWatch(job.lease))) == []
    assert (room.job(job_id).status, room.job(job_id).attempts, files(room)) == ("paused", 0, [])
    with room.database.write() as session:
        pauses.resume(session, room.tenant, job_id)
    assert claim(room).lease.job_id == job_id


def test_a_stopping_worker_gives_the_merge_back(room: Room, endless: threading.Event) -> None:
    job_id, job = enqueue(room), claim(room)
    slices = run_merge(room.room, job, LeaseWatch(job.lease))
    next(slices)
    room.room.stopping.set()
    assert list(slices) == []
    assert (room.job(job_id).status, room.job(job_id).attempts) == ("queued", 0)


def test_a_lost_lease_writes_nothing_and_the_next_worker_finishes(room: Room, export: Callable[[Write], None]) -> None:
    export(lambda sink: sink.write(CONTENT))
    job_id, job = enqueue(room), claim(room, lease_seconds=0)
    slow = run_merge(room.room, job, LeaseWatch(job.lease))
    list(islice(slow, 2))
    run(room, claim(room, "wkr-2"))
    (file,) = files(room)
    result = room.job(job_id).result
    list(slow)
    assert [row.id for row in files(room)] == [file.id]
    assert room.job(job_id).result == result


def test_a_database_that_is_away_for_a_while_costs_only_time(
    room: Room, export: Callable[[Write], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    export(lambda sink: sink.write(CONTENT))
    extend, finish = queue.extend_staged, queue.finish_merged
    calls: list[Any] = []

    def unanswered(*arguments: Any) -> None:
        extend(*arguments)
        calls.append(arguments)
        if len(calls) == 1:
            raise OperationalError("COMMIT", {}, Exception("connection reset"))

    def away(*arguments: Any) -> File:
        calls.append(arguments)
        if len(calls) == 4:
            raise OperationalError("BEGIN", {}, Exception("connection refused"))
        return finish(*arguments)

    monkeypatch.setattr(queue, "extend_staged", unanswered)
    monkeypatch.setattr(queue, "finish_merged", away)
    job_id = enqueue(room)
    assert [pause for pause in run(room, claim(room)) if pause >= 0.1] == [0.1, 0.1]
    assert room.job(job_id).status == "succeeded"
    with room.database.read() as session:
        assert read_blob(session, room.tenant, files(room)[0].blob_id) == CONTENT
