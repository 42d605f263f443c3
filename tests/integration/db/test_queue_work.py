"""What a running job leaves in the database: progress, events, checkpoints, snapshots, and its end."""

import math

import pytest
from sqlalchemy import func, select, update

from app.contracts.training import StepMetrics
from app.db import queue
from app.db.blobs import read_blob
from app.db.queue import Lease
from app.db.repositories import jobs
from app.db.session import Database
from app.db.tables import Blob, BlobChunk, JobSnapshot
from tests.integration.db import rows


@pytest.fixture
def lease(database: Database, tenant: str) -> Lease:
    with database.write() as session:
        rows.add_job(session, tenant)
    return rows.claim_one(database).lease


def stored_blobs(database: Database) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(Blob)) or 0


def test_progress_and_events(database: Database, tenant: str, lease: Lease) -> None:
    metrics = jobs.NewEvent("step 3", type="metrics", data=rows.METRICS.model_dump())
    queue.record_progress(database, lease, rows.METRICS, [jobs.NewEvent("epoch 1"), metrics])
    assert StepMetrics.model_validate(rows.read_job(database, lease.job_id).progress) == rows.METRICS
    with database.read() as session:
        events, has_more = jobs.events(session, tenant, lease.job_id, order="asc")
    assert [event.message for event in events] == ["Job created and queued", "Job started", "epoch 1", "step 3"]
    assert events[-1].data == rows.METRICS.model_dump()
    assert not has_more
    queue.record_progress(database, lease, None, [jobs.NewEvent("x" * 5000)])
    with database.read() as session:
        assert jobs.events(session, tenant, lease.job_id, limit=1)[0][0].message == "x" * 2000
    assert StepMetrics.model_validate(rows.read_job(database, lease.job_id).progress) == rows.METRICS


def test_numbers_that_are_not_finite_are_stored_as_null(database: Database, lease: Lease) -> None:
    spiked = rows.METRICS.model_copy(update={"loss": math.nan, "grad_norm": math.inf, "skipped": True})
    queue.record_progress(database, lease, spiked)
    progress = rows.read_job(database, lease.job_id).progress
    assert progress == rows.METRICS.model_dump() | {"loss": None, "grad_norm": None, "skipped": True}


def test_the_newest_two_snapshots_are_kept(database: Database, tenant: str, lease: Lease) -> None:
    before = stored_blobs(database)
    for step in (20, 40, 60):
        queue.save_snapshot(database, lease, step, b"tensors at %d" % step, {"step": step, "x": 0.1})
    with database.read() as session:
        assert session.scalars(select(JobSnapshot.step).order_by(JobSnapshot.step)).all() == [40, 60]
        loaded = queue.load_snapshot(session, tenant, lease.job_id)
    assert loaded == queue.SavedSnapshot(step=60, tensors=b"tensors at 60", manifest={"step": 60, "x": 0.1})
    assert stored_blobs(database) == before + 2


def test_no_snapshot_is_none(database: Database, tenant: str, lease: Lease) -> None:
    with database.read() as session:
        assert queue.load_snapshot(session, tenant, lease.job_id) is None


@pytest.mark.parametrize("data", [b"tensors at 4O", b"tensors at", b""])
def test_a_damaged_snapshot_falls_back_to_the_one_before(
    database: Database, tenant: str, lease: Lease, data: bytes
) -> None:
    for step in (20, 40):
        queue.save_snapshot(database, lease, step, b"tensors at %d" % step, {"step": step})
    with database.write() as session:
        newest = select(JobSnapshot.tensors_id).where(JobSnapshot.step == 40).scalar_subquery()
        session.execute(update(BlobChunk).where(BlobChunk.blob_id == newest).values(data=data))
    with database.read() as session:
        loaded = queue.load_snapshot(session, tenant, lease.job_id)
    assert loaded is not None
    assert (loaded.step, loaded.tensors) == (20, b"tensors at 20")

    # the resumed run writes the very same bytes again: they must not be taken for the damaged ones
    queue.save_snapshot(database, lease, 40, b"tensors at 40", {"step": 40})
    with database.read() as session:
        loaded = queue.load_snapshot(session, tenant, lease.job_id)
        assert session.scalars(select(JobSnapshot.step).order_by(JobSnapshot.step)).all() == [20, 40]
    assert loaded is not None
    assert (loaded.step, loaded.tensors) == (40, b"tensors at 40")


def test_a_checkpoint_never_changes(database: Database, tenant: str, lease: Lease) -> None:
    first = queue.save_checkpoint(database, lease, 10, b"first", {"r": 16}, {"loss": 1.0})
    again = queue.save_checkpoint(database, lease, 10, b"second", {"r": 16}, {"loss": 2.0})
    assert again.id == first.id
    later = queue.save_checkpoint(database, lease, 20, b"third", {"r": 16}, {"loss": 0.5})
    with database.read() as session:
        page, has_more = jobs.checkpoints(session, tenant, lease.job_id, order="asc")
        assert [(row.id, row.step, row.metrics) for row in page] == [
            (first.id, 10, {"loss": 1.0}),
            (later.id, 20, {"loss": 0.5}),
        ]
        assert read_blob(session, tenant, page[0].weights_id) == b"first"
    assert not has_more


def test_failing(database: Database, tenant: str, lease: Lease) -> None:
    before = stored_blobs(database)
    queue.save_snapshot(database, lease, 1, b"tensors", {})
    error = {"code": "no_trainable_tokens", "message": "nothing to train on", "param": "training_file"}
    queue.finish_failed(database, lease, error)
    job = rows.read_job(database, lease.job_id)
    assert (job.status, job.error, job.lease_owner) == ("failed", error, None)
    assert job.finished_at is not None
    assert stored_blobs(database) == before
    with database.read() as session:
        newest = jobs.events(session, tenant, lease.job_id)[0][0]
    assert (newest.level, newest.message) == ("error", "Job failed: nothing to train on")


def test_cancelling_a_queued_job_is_immediate(database: Database, tenant: str) -> None:
    with database.write() as session:
        job = rows.add_job(session, tenant)
    with database.write() as session:
        cancelled = jobs.request_cancel(session, tenant, job.id)
    assert cancelled is not None
    assert (cancelled.status, cancelled.cancel_requested) == ("cancelled", True)
    assert cancelled.finished_at is not None
    assert rows.claim(database) is None


def test_cancelling_a_running_job_goes_through_its_heartbeat(database: Database, tenant: str, lease: Lease) -> None:
    assert queue.heartbeat(database, lease, 30.0) == queue.Asked(cancel=False, pause=False)
    with database.write() as session:
        asked = jobs.request_cancel(session, tenant, lease.job_id)
    assert asked is not None
    assert (asked.status, asked.finished_at) == ("running", None)
    assert queue.heartbeat(database, lease, 30.0) == queue.Asked(cancel=True, pause=False)
    queue.finish_cancelled(database, lease)
    assert rows.read_job(database, lease.job_id).status == "cancelled"


def test_cancelling_an_ended_job_changes_nothing(database: Database, tenant: str, lease: Lease) -> None:
    queue.finish_succeeded(database, lease, rows.RESULT, rows.VERSION)
    before = rows.dump(database)
    with database.write() as session:
        job = jobs.request_cancel(session, tenant, lease.job_id)
    assert job is not None
    assert job.status == "succeeded"
    assert rows.dump(database) == before


def test_giving_back_a_job_that_was_to_be_cancelled_cancels_it(database: Database, tenant: str, lease: Lease) -> None:
    queue.save_snapshot(database, lease, 1, b"tensors", {})
    with database.write() as session:
        jobs.request_cancel(session, tenant, lease.job_id)
    queue.give_back(database, lease)
    job = rows.read_job(database, lease.job_id)
    assert job.status == "cancelled"
    assert job.finished_at is not None
    with database.read() as session:
        assert queue.load_snapshot(session, tenant, lease.job_id) is None


def test_a_job_given_back_keeps_its_snapshot(database: Database, tenant: str, lease: Lease) -> None:
    queue.save_snapshot(database, lease, 5, b"tensors", {"step": 5})
    queue.give_back(database, lease)
    assert rows.claim_one(database, "worker-2").lease.token == 2
    with database.read() as session:
        loaded = queue.load_snapshot(session, tenant, lease.job_id)
        events = jobs.events(session, tenant, lease.job_id)[0]
    assert loaded is not None
    assert loaded.step == 5
    assert [event.message for event in events[:2]] == ["Job resumed", "Given back: in the queue again"]
