"""Claiming: exclusive, fair, by the database's clock, and with an end to attempts."""

import threading
from collections import Counter

import pytest
from sqlalchemy import select

from app.db import queue
from app.db.blobs import write_blob
from app.db.repositories import jobs, tenants
from app.db.session import Database
from app.db.tables import Job, JobSnapshot
from tests.integration.db import rows


def claim_until_empty(database: Database, worker_id: str, taken: list[queue.ClaimedJob]) -> None:
    while (claimed := rows.claim(database, worker_id, lease_seconds=600)) is not None:
        taken.append(claimed)


def test_eight_workers_take_each_job_once_and_tenants_in_turn(database: Database) -> None:
    with database.write() as session:
        owners = [tenants.create(session, f"tenant-{n}").id for n in range(20)]
        for owner in owners:  # all of one tenant's jobs before the next tenant's: age alone would not be fair
            for _ in range(10):
                rows.add_job(session, owner)
    taken: list[queue.ClaimedJob] = []
    threads = [threading.Thread(target=claim_until_empty, args=(database, f"worker-{n}", taken)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(taken) == 200
    assert len({claimed.lease.job_id for claimed in taken}) == 200
    assert {claimed.lease.token for claimed in taken} == {1}
    with database.read() as session:
        in_order = session.scalars(select(Job.tenant_id).order_by(Job.started_at)).all()
        workers = set(session.scalars(select(Job.lease_owner)))
    assert len(workers) > 1
    for turn in range(10):
        assert Counter(in_order[20 * turn : 20 * turn + 20]) == Counter(owners)


def test_a_claim_brings_what_the_worker_needs(database: Database, tenant: str) -> None:
    with database.write() as session:
        blobs = [write_blob(session, tenant, name).id for name in (b"validation", b"retention")]
        job = rows.add_job(session, tenant, kind="adapt", validation_blob_id=blobs[0], retention_blob_id=blobs[1])
    claimed = rows.claim_one(database, "worker-9")
    assert claimed == queue.ClaimedJob(
        lease=queue.Lease(job_id=job.id, tenant_id=tenant, token=1, worker_id="worker-9"),
        kind="adapt",
        base_model=rows.BASE,
        config=rows.CONFIG,
        adapter_name="support",
        parent_version_id=None,
        training_blob_id=job.training_blob_id,
        validation_blob_id=blobs[0],
        retention_blob_id=blobs[1],
        attempts=1,
        weight=1.0,
    )
    stored = rows.read_job(database, job.id)
    assert (stored.status, stored.lease_owner, stored.lease_token) == ("running", "worker-9", 1)
    assert stored.started_at is not None
    assert stored.lease_expires_at == pytest.approx(stored.started_at + 30, abs=2)


def test_a_claim_brings_the_tenants_weight_as_it_is_now(database: Database, tenant: str) -> None:
    with database.write() as session:
        rows.add_job(session, tenant)
        tenants.set_limits(session, tenant, weight=2.5)
    assert rows.claim_one(database).weight == 2.5


def test_within_a_tenant_the_oldest_job_comes_first(database: Database, tenant: str) -> None:
    with database.write() as session:
        made = [rows.add_job(session, tenant).id for _ in range(3)]
    assert [rows.claim_one(database).lease.job_id for _ in range(3)] == made


def test_only_jobs_of_the_base_model_are_claimed(database: Database, tenant: str) -> None:
    with database.write() as session:
        rows.add_job(session, tenant, base_model="another")
    assert rows.claim(database) is None


def test_a_running_job_is_not_claimed_while_its_lease_lasts(database: Database, tenant: str) -> None:
    with database.write() as session:
        rows.add_job(session, tenant)
    rows.claim_one(database)
    assert rows.claim(database, "worker-2") is None


def test_an_expired_lease_makes_the_job_claimable_with_a_bigger_token(database: Database, tenant: str) -> None:
    with database.write() as session:
        job = rows.add_job(session, tenant)
    first = rows.claim_one(database)
    started_at = rows.read_job(database, job.id).started_at
    rows.expire_lease(database, job.id)
    second = rows.claim_one(database, "worker-2")
    assert second.lease.job_id == first.lease.job_id
    assert (second.lease.token, second.attempts) == (2, 2)
    assert rows.read_job(database, job.id).started_at == started_at
    with database.read() as session:
        newest = jobs.events(session, tenant, job.id)[0][0]
    assert (newest.level, newest.message) == ("warn", "Its worker stopped responding: taken over, attempt 2")


def test_a_heartbeat_extends_the_lease(database: Database, tenant: str) -> None:
    with database.write() as session:
        job = rows.add_job(session, tenant)
    claimed = rows.claim_one(database)
    rows.expire_lease(database, job.id)
    assert queue.heartbeat(database, claimed.lease, 30.0) == (False, False)
    assert rows.claim(database, "worker-2") is None


def test_a_job_over_its_attempts_fails_and_the_next_one_is_taken(database: Database, tenant: str) -> None:
    with database.write() as session:
        poison, healthy = rows.add_job(session, tenant), rows.add_job(session, tenant)
    for attempt in (1, 2, 3):
        claimed = rows.claim_one(database)
        assert (claimed.lease.job_id, claimed.attempts) == (poison.id, attempt)
        queue.save_snapshot(database, claimed.lease, attempt, b"tensors", {})
        rows.expire_lease(database, poison.id)
    assert rows.claim_one(database).lease.job_id == healthy.id
    failed = rows.read_job(database, poison.id)
    assert failed.status == "failed"
    assert failed.error == {
        "code": "worker_lost",
        "message": "the worker stopped responding in each of 3 attempts; the job was given up",
        "param": None,
    }
    assert failed.finished_at is not None
    assert (failed.lease_owner, failed.lease_expires_at) == (None, None)
    with database.read() as session:
        assert session.scalars(select(JobSnapshot)).all() == []
        assert jobs.events(session, tenant, poison.id)[0][0].level == "error"


def test_giving_back_charges_no_attempt(database: Database, tenant: str) -> None:
    with database.write() as session:
        job = rows.add_job(session, tenant)
    for token in range(1, 6):  # more often than there are attempts
        claimed = rows.claim_one(database)
        assert (claimed.lease.token, claimed.attempts) == (token, 1)
        queue.give_back(database, claimed.lease)
        stored = rows.read_job(database, job.id)
        assert (stored.status, stored.attempts, stored.lease_owner) == ("queued", 0, None)


def test_a_lost_job_that_was_to_be_cancelled_is_cancelled_by_the_next_claim(database: Database, tenant: str) -> None:
    with database.write() as session:
        job = rows.add_job(session, tenant)
    rows.claim_one(database)
    with database.write() as session:
        jobs.request_cancel(session, tenant, job.id)
    rows.expire_lease(database, job.id)
    assert rows.claim(database, "worker-2") is None
    assert rows.read_job(database, job.id).status == "cancelled"


def test_a_claim_passes_over_a_job_whose_row_is_locked(postgres_url: str) -> None:
    database = Database(postgres_url)
    with database.write() as session:
        owner = tenants.create(session, "acme").id
        locked, free = rows.add_job(session, owner), rows.add_job(session, owner)
    with database.write() as session:
        session.scalar(select(Job).where(Job.id == locked.id).with_for_update())
        assert rows.claim_one(database).lease.job_id == free.id
    database.dispose()
