"""Publishing: one version per job, numbers never reused, the pointer moved, all in one transaction or not at all."""

import threading

import pytest
from sqlalchemy import Engine, event, select

from app.contracts.training import TrainingResult
from app.db import queue
from app.db.blobs import read_blob
from app.db.queue import Lease
from app.db.repositories import adapters, jobs
from app.db.session import Database
from app.db.tables import Adapter, AdapterVersion, Job, JobSnapshot
from tests.integration.db import rows


def start(database: Database, tenant: str, **changes: object) -> Lease:
    with database.write() as session:
        rows.add_job(session, tenant, **changes)
    return rows.claim_one(database).lease


def publish(database: Database, lease: Lease, weights: bytes = b"weights") -> AdapterVersion:
    version = queue.NewVersion(weights=weights, config={"r": 16}, metrics={"steps": 12})
    published = queue.finish_succeeded(database, lease, rows.RESULT, version)
    assert published is not None
    return published


def adapter_named(database: Database, tenant: str, name: str = "support") -> Adapter:
    with database.read() as session:
        adapter = adapters.get_by_name(session, tenant, name)
    assert adapter is not None
    return adapter


def test_a_free_name_makes_an_adapter_with_version_one(database: Database, tenant: str) -> None:
    lease = start(database, tenant)
    queue.save_snapshot(database, lease, 1, b"tensors", {})
    version = publish(database, lease)
    adapter = adapter_named(database, tenant)
    assert (adapter.base_model, adapter.latest_version, adapter.active_version) == (rows.BASE, 1, 1)
    assert (version.adapter_id, version.version, version.parent_version, version.job_id) == (
        adapter.id,
        1,
        None,
        lease.job_id,
    )
    assert (version.config, version.metrics, version.bytes) == ({"r": 16}, {"steps": 12}, 7)
    job = rows.read_job(database, lease.job_id)
    assert (job.status, job.adapter_id, job.result_version_id) == ("succeeded", adapter.id, version.id)
    assert TrainingResult.model_validate(job.result) == rows.RESULT
    assert job.finished_at is not None
    with database.read() as session:
        assert read_blob(session, tenant, version.weights_id) == b"weights"
        assert session.scalars(select(JobSnapshot)).all() == []
        newest = jobs.events(session, tenant, lease.job_id)[0][0]
    assert newest.message == "Job succeeded: version 1 of adapter support is active"


def test_an_existing_name_gets_the_next_version_with_its_parent(database: Database, tenant: str) -> None:
    first = publish(database, start(database, tenant))
    second = publish(
        database,
        start(database, tenant, adapter_id=first.adapter_id, parent_version_id=first.id),
        b"better weights",
    )
    assert (second.adapter_id, second.version, second.parent_version) == (first.adapter_id, 2, 1)
    adapter = adapter_named(database, tenant)
    assert (adapter.latest_version, adapter.active_version) == (2, 2)


def test_a_parent_in_another_adapter_is_no_parent_version(database: Database, tenant: str) -> None:
    first = publish(database, start(database, tenant))
    branch = publish(database, start(database, tenant, adapter_name="branch", parent_version_id=first.id))
    assert (branch.version, branch.parent_version) == (1, None)
    assert branch.adapter_id != first.adapter_id


def test_version_numbers_are_never_reused(database: Database, tenant: str) -> None:
    for _ in range(3):
        publish(database, start(database, tenant))
    adapter = adapter_named(database, tenant)
    with database.write() as session:
        assert adapters.rollback(session, tenant, adapter.id, 1).active_version == 1
    assert publish(database, start(database, tenant)).version == 4
    assert adapter_named(database, tenant).active_version == 4


def test_a_name_on_another_base_fails_the_job_and_publishes_nothing(database: Database, tenant: str) -> None:
    lease = start(database, tenant)
    with database.write() as session:
        adapters.get_or_create(session, tenant, name="support", base_model="another")
    before = rows.dump(database, "jobs", "job_events", "daily_tokens")
    message = "adapter 'support' stands on base model 'another', not on 'smol': use another name"
    with pytest.raises(queue.PublishError, match=message) as refusal:
        queue.finish_succeeded(database, lease, rows.RESULT, rows.VERSION)
    assert refusal.value.code == "adapter_conflict"
    job = rows.read_job(database, lease.job_id)
    assert (job.status, job.result, job.result_version_id) == ("failed", None, None)
    assert job.error == {"code": "adapter_conflict", "message": message, "param": "adapter"}
    assert rows.dump(database, "jobs", "job_events", "daily_tokens") == before


def test_an_adapter_deleted_meanwhile_is_not_brought_back(database: Database, tenant: str) -> None:
    first = publish(database, start(database, tenant))
    lease = start(database, tenant, adapter_id=first.adapter_id, parent_version_id=first.id)
    with database.write() as session:
        assert adapters.delete(session, tenant, first.adapter_id)
    before = rows.dump(database, "jobs", "job_events", "daily_tokens")
    with pytest.raises(queue.PublishError, match="adapter 'support' was deleted while the job ran"):
        queue.finish_succeeded(database, lease, rows.RESULT, rows.VERSION)
    job = rows.read_job(database, lease.job_id)
    assert job.status == "failed"
    assert job.error is not None
    assert job.error["code"] == "adapter_deleted"
    assert rows.dump(database, "jobs", "job_events", "daily_tokens") == before


def test_the_name_of_a_deleted_adapter_is_free_again_and_its_numbers_go_on(database: Database, tenant: str) -> None:
    first = publish(database, start(database, tenant))
    lease = start(database, tenant)
    with database.write() as session:
        adapters.delete(session, tenant, first.adapter_id)
    second = publish(database, lease)
    assert second.version == 2
    assert second.adapter_id != first.adapter_id


def test_a_rolled_back_run_succeeds_and_publishes_nothing(database: Database, tenant: str) -> None:
    lease = start(database, tenant)
    result = rows.RESULT.model_copy(update={"rolled_back": True, "rollback_reason": "perplexity rose from 9 to 30"})
    assert queue.finish_succeeded(database, lease, result, None) is None
    job = rows.read_job(database, lease.job_id)
    assert (job.status, job.adapter_id, job.result_version_id) == ("succeeded", None, None)
    with database.read() as session:
        assert session.scalars(select(Adapter)).all() == []
        newest = jobs.events(session, tenant, lease.job_id)[0][0]
    assert newest.message == "Nothing published, rolled back: perplexity rose from 9 to 30"


def test_finishing_twice_is_refused(database: Database, tenant: str) -> None:
    lease = start(database, tenant)
    publish(database, lease)
    with pytest.raises(queue.StaleLeaseError):
        publish(database, lease)
    assert adapter_named(database, tenant).latest_version == 1


class InjectedError(Exception):
    """Stands for a crash between two statements."""


@pytest.mark.parametrize("existing", [False, True])
def test_a_crash_after_any_statement_leaves_nothing_half_written(
    database: Database, tenant: str, existing: bool
) -> None:
    if existing:
        publish(database, start(database, tenant), b"first")
    lease = start(database, tenant)
    queue.save_snapshot(database, lease, 1, b"tensors", {"step": 1})
    before = rows.dump(database)
    budget = 0
    published = None

    def crash(*_arguments: object) -> None:
        nonlocal budget
        budget -= 1
        if budget == 0:
            raise InjectedError

    crashes = 0
    event.listen(Engine, "after_cursor_execute", crash)
    try:
        while published is None:
            budget = crashes + 1
            try:
                published = queue.finish_succeeded(database, lease, rows.RESULT, rows.VERSION)
            except InjectedError:
                crashes += 1
                assert rows.dump(database) == before, f"after statement {crashes}"
    finally:
        event.remove(Engine, "after_cursor_execute", crash)
    assert published.version == (2 if existing else 1)
    assert crashes >= 10
    assert rows.read_job(database, lease.job_id).status == "succeeded"


def test_twenty_jobs_publishing_into_one_name_at_once(database: Database, tenant: str) -> None:
    leases = [start(database, tenant) for _ in range(20)]
    published: list[AdapterVersion] = []

    def finish(lease: Lease) -> None:
        published.append(publish(database, lease, lease.job_id.encode()))

    threads = [threading.Thread(target=finish, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(version.version for version in published) == list(range(1, 21))
    assert len({version.adapter_id for version in published}) == 1
    assert adapter_named(database, tenant).active_version == 20
    with database.read() as session:
        assert set(session.scalars(select(Job.status))) == {"succeeded"}


def test_a_rescuer_racing_the_finish_never_moves_a_finished_job(database: Database, tenant: str) -> None:
    for _ in range(20):
        lease = start(database, tenant)
        rows.expire_lease(database, lease.job_id)
        barrier = threading.Barrier(2)
        outcome: dict[str, object] = {}

        def finish(lease: Lease = lease, barrier: threading.Barrier = barrier, outcome: dict = outcome) -> None:
            barrier.wait()
            try:
                outcome["published"] = publish(database, lease)
            except queue.StaleLeaseError:
                outcome["published"] = None

        def rescue(barrier: threading.Barrier = barrier, outcome: dict = outcome) -> None:
            barrier.wait()
            outcome["claimed"] = rows.claim(database, "worker-2")

        threads = [threading.Thread(target=finish), threading.Thread(target=rescue)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (outcome["published"] is None) != (outcome["claimed"] is None)
        job = rows.read_job(database, lease.job_id)
        assert job.status == ("succeeded" if outcome["claimed"] is None else "running")
        if isinstance(outcome["claimed"], queue.ClaimedJob):
            queue.finish_cancelled(database, outcome["claimed"].lease)
