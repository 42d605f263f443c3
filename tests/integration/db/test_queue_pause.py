"""Pausing: a waiting job at once, a running one through its worker; resuming puts it back where it was in line."""

import pytest

from app.db import queue
from app.db.queue import Lease
from app.db.repositories import jobs, pauses, tenants
from app.db.session import Database
from app.db.tables import Job
from tests.integration.db import rows


@pytest.fixture
def lease(database: Database, tenant: str) -> Lease:
    with database.write() as session:
        rows.add_job(session, tenant)
    return rows.claim_one(database).lease


def pause(database: Database, tenant: str, job_id: str) -> Job:
    with database.write() as session:
        job = pauses.request(session, tenant, job_id)
    assert job is not None
    return job


def resume(database: Database, tenant: str, job_id: str) -> Job:
    with database.write() as session:
        job = pauses.resume(session, tenant, job_id)
    assert job is not None
    return job


def messages(database: Database, tenant: str, job_id: str) -> list[str]:
    with database.read() as session:
        return [event.message for event in jobs.events(session, tenant, job_id, order="asc", limit=100)[0]]


def test_a_paused_job_is_not_claimed_until_it_is_resumed(database: Database, tenant: str) -> None:
    with database.write() as session:
        first, second = rows.add_job(session, tenant).id, rows.add_job(session, tenant).id
    assert pause(database, tenant, first).status == "paused"
    assert pause(database, tenant, first).status == "paused"
    assert rows.claim_one(database).lease.job_id == second
    assert rows.claim(database) is None
    assert resume(database, tenant, first).status == "queued"
    assert resume(database, tenant, first).status == "queued"
    assert rows.claim_one(database).lease.job_id == first
    assert messages(database, tenant, first)[1:] == ["Job paused", "Back in the queue", "Job started"]


def test_a_resumed_job_comes_before_those_queued_after_it(database: Database, tenant: str) -> None:
    with database.write() as session:
        first = rows.add_job(session, tenant).id
    pause(database, tenant, first)
    with database.write() as session:
        rows.add_job(session, tenant)
    resume(database, tenant, first)
    assert rows.claim_one(database).lease.job_id == first


def test_a_running_job_is_paused_by_its_worker_and_keeps_its_resume_point(
    database: Database, tenant: str, lease: Lease
) -> None:
    assert pause(database, tenant, lease.job_id).status == "running"
    assert queue.heartbeat(database, lease, 30.0) == queue.Asked(cancel=False, pause=True)
    assert queue.record_progress(database, lease, rows.METRICS) == queue.Asked(cancel=False, pause=True)
    queue.save_snapshot(database, lease, 3, b"tensors", {"step": 3})
    queue.give_back(database, lease)
    job = rows.read_job(database, lease.job_id)
    assert (job.status, job.attempts, job.lease_owner, job.finished_at) == ("paused", 0, None, None)
    assert rows.claim(database) is None
    resume(database, tenant, lease.job_id)
    assert rows.claim_one(database, "worker-2").attempts == 1
    with database.read() as session:
        snapshot = queue.load_snapshot(session, tenant, lease.job_id)
    assert snapshot is not None
    assert snapshot.step == 3
    told = messages(database, tenant, lease.job_id)
    assert told[2:] == ["Pause requested", "Job paused", "Back in the queue", "Job resumed"]


def test_a_pause_that_its_worker_has_not_come_to_is_withdrawn(database: Database, tenant: str, lease: Lease) -> None:
    pause(database, tenant, lease.job_id)
    assert resume(database, tenant, lease.job_id).status == "running"
    assert queue.heartbeat(database, lease, 30.0) == queue.Asked(cancel=False, pause=False)
    queue.give_back(database, lease)  # by a worker that had heard of the pause only
    assert rows.claim_one(database).lease.job_id == lease.job_id


def test_a_running_job_that_is_lost_is_paused_by_the_next_claim(database: Database, tenant: str, lease: Lease) -> None:
    pause(database, tenant, lease.job_id)
    rows.expire_lease(database, lease.job_id)
    assert rows.claim(database, "worker-2") is None
    job = rows.read_job(database, lease.job_id)
    assert (job.status, job.lease_owner, job.lease_expires_at) == ("paused", None, None)
    with pytest.raises(queue.StaleLeaseError):
        queue.heartbeat(database, lease, 30.0)


def test_a_job_that_ends_before_its_worker_hears_of_the_pause_has_ended(
    database: Database, tenant: str, lease: Lease
) -> None:
    pause(database, tenant, lease.job_id)
    queue.finish_succeeded(database, lease, rows.RESULT, rows.VERSION)
    before = rows.dump(database)
    assert pause(database, tenant, lease.job_id).status == "succeeded"
    assert resume(database, tenant, lease.job_id).status == "succeeded"
    assert rows.dump(database) == before


def test_cancelling_comes_before_pausing(database: Database, tenant: str, lease: Lease) -> None:
    pause(database, tenant, lease.job_id)
    with database.write() as session:
        jobs.request_cancel(session, tenant, lease.job_id)
    queue.give_back(database, lease)
    assert rows.read_job(database, lease.job_id).status == "cancelled"


def test_a_paused_job_is_cancelled_at_once(database: Database, tenant: str) -> None:
    with database.write() as session:
        job_id = rows.add_job(session, tenant).id
    pause(database, tenant, job_id)
    with database.write() as session:
        job = jobs.request_cancel(session, tenant, job_id)
    assert job is not None
    assert job.status == "cancelled"
    assert job.finished_at is not None
    assert resume(database, tenant, job_id).status == "cancelled"


def test_paused_jobs_free_their_place_at_the_running_cap(database: Database, tenant: str, lease: Lease) -> None:
    with database.write() as session:
        tenants.set_limits(session, tenant, max_running_jobs=1)
        other = rows.add_job(session, tenant).id
    assert rows.claim(database) is None
    pause(database, tenant, lease.job_id)
    queue.give_back(database, lease)
    assert rows.claim_one(database).lease.job_id == other
