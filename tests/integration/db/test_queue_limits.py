"""A tenant's limits: how many jobs run at a time, how many tokens a day; whoever is at one holds up nobody else."""

import threading

import pytest
from sqlalchemy import select, update

from app.core.errors import QuotaError
from app.db import queue
from app.db.repositories import jobs, tenants
from app.db.session import Database
from app.db.tables import DailyTokens, QueueAccount
from app.services.jobs import queue_once
from tests.integration.db import rows

ERROR = {"code": "x", "message": "y", "param": None}


def add_jobs(database: Database, tenant: str, count: int, **changes: object) -> list[str]:
    with database.write() as session:
        return [rows.add_job(session, tenant, **changes).id for _ in range(count)]


def limit(database: Database, tenant: str, **limits: float | None) -> None:
    with database.write() as session:
        tenants.set_limits(session, tenant, **limits)


def owners_of_next(database: Database, count: int) -> list[str]:
    return [rows.claim_one(database).lease.tenant_id for _ in range(count)]


def train(database: Database, job: queue.ClaimedJob, tokens: int) -> None:
    queue.record_progress(database, job.lease, rows.METRICS.model_copy(update={"tokens": tokens}))


def tomorrow(database: Database) -> None:
    """Let what was counted today have been yesterday, and whoever is held back until midnight be free."""
    with database.write() as session:
        session.execute(update(DailyTokens).values(day=DailyTokens.day - 1))
        session.execute(update(QueueAccount).values(held_until=QueueAccount.held_until - 86400))


def test_a_tenant_at_its_running_cap_is_passed_over_until_a_job_ends(
    database: Database, tenant: str, other_tenant: str
) -> None:
    limit(database, tenant, max_running_jobs=2)
    add_jobs(database, tenant, 4)
    first, second = rows.claim_one(database), rows.claim_one(database)
    assert rows.claim(database) is None
    add_jobs(database, other_tenant, 2)
    assert owners_of_next(database, 1) == [other_tenant]
    queue.finish_failed(database, first.lease, ERROR)
    assert owners_of_next(database, 2) == [other_tenant, tenant]
    queue.give_back(database, second.lease)
    assert rows.claim_one(database).lease.job_id == second.lease.job_id
    assert rows.claim(database) is None


def test_the_running_cap_holds_over_all_base_models(database: Database, tenant: str) -> None:
    limit(database, tenant, max_running_jobs=1)
    add_jobs(database, tenant, 1)
    add_jobs(database, tenant, 1, base_model="another")
    running = rows.claim_one(database)
    assert rows.claim(database, base_model="another") is None
    queue.finish_failed(database, running.lease, ERROR)
    assert rows.claim(database, base_model="another") is not None


def test_claims_at_the_same_time_do_not_exceed_the_running_cap(postgres_url: str) -> None:
    database = Database(postgres_url)
    bases = [f"base-{n}" for n in range(6)]
    with database.write() as session:
        owner = tenants.create(session, "acme").id
    limit(database, owner, max_running_jobs=2)
    for base in bases:
        add_jobs(database, owner, 3, base_model=base)
    start = threading.Barrier(len(bases))

    def work(base: str) -> None:
        start.wait()
        for _ in range(3):
            rows.claim(database, f"worker-{base}", base_model=base)

    threads = [threading.Thread(target=work, args=(base,)) for base in bases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as session:
        assert jobs.count(session, owner, "running") == 2
    database.dispose()


def test_a_lost_job_is_taken_over_also_at_the_cap(database: Database, tenant: str) -> None:
    limit(database, tenant, max_running_jobs=1)
    add_jobs(database, tenant, 2)
    lost = rows.claim_one(database)
    rows.expire_lease(database, lost.lease.job_id)
    assert rows.claim_one(database, "worker-2").lease.job_id == lost.lease.job_id
    assert rows.claim(database) is None


def test_over_its_daily_tokens_no_job_starts_until_tomorrow(database: Database, tenant: str, other_tenant: str) -> None:
    limit(database, tenant, tokens_per_day=1000)
    add_jobs(database, tenant, 5)
    first = rows.claim_one(database)
    train(database, first, 999)
    second = rows.claim_one(database)
    train(database, second, 1)
    assert rows.claim(database) is None
    train(database, second, 5000)  # What runs goes on.
    add_jobs(database, other_tenant, 1)
    assert owners_of_next(database, 1) == [other_tenant]
    tomorrow(database)
    assert owners_of_next(database, 1) == [tenant]


def test_raising_or_lifting_a_limit_takes_effect_at_the_next_claim(database: Database, tenant: str) -> None:
    limit(database, tenant, tokens_per_day=0, max_running_jobs=0)
    add_jobs(database, tenant, 3)
    assert rows.claim(database) is None
    limit(database, tenant, max_running_jobs=1)
    assert rows.claim(database) is None
    limit(database, tenant, tokens_per_day=None)
    assert owners_of_next(database, 1) == [tenant]
    assert rows.claim(database) is None
    limit(database, tenant, max_running_jobs=None)
    assert owners_of_next(database, 2) == [tenant] * 2


def test_nothing_is_owed_for_time_at_a_limit(database: Database, tenant: str, other_tenant: str) -> None:
    limit(database, tenant, tokens_per_day=0)
    add_jobs(database, tenant, 20)
    add_jobs(database, other_tenant, 30)
    assert owners_of_next(database, 10) == [other_tenant] * 10
    limit(database, tenant, tokens_per_day=None)
    owners = owners_of_next(database, 10)
    assert owners.count(tenant) == 5


def test_jobs_queued_while_held_back_wait_too(database: Database, tenant: str) -> None:
    limit(database, tenant, max_running_jobs=1)
    add_jobs(database, tenant, 2)
    running = rows.claim_one(database)
    assert rows.claim(database) is None
    (late,) = add_jobs(database, tenant, 1, priority="high")
    assert rows.claim(database) is None
    queue.finish_failed(database, running.lease, ERROR)
    assert rows.claim_one(database).lease.job_id == late


@pytest.mark.parametrize(("own", "queued"), [(None, 3), (1, 1), (5, 5), (0, 0)])
def test_the_tenants_own_limit_on_queued_jobs_comes_before_the_settings(
    database: Database, tenant: str, own: int | None, queued: int
) -> None:
    limit(database, tenant, max_queued_jobs=own)
    for _ in range(queued):
        with database.write() as session:
            queue_once(session, tenant, lambda: rows.add_job(session, tenant), None, max_queued=3)
    with (
        pytest.raises(QuotaError, match=f"You have {queued} queued and paused jobs") as refused,
        database.write() as session,
    ):
        queue_once(session, tenant, lambda: rows.add_job(session, tenant), None, max_queued=3)
    assert (refused.value.status, refused.value.code, refused.value.retry_after) == (429, "too_many_queued_jobs", 30)


def test_queueing_at_the_same_time_does_not_exceed_the_limit(postgres_url: str) -> None:
    database = Database(postgres_url)
    with database.write() as session:
        owner = tenants.create(session, "acme").id
    limit(database, owner, max_queued_jobs=2)
    start = threading.Barrier(6)

    def ask() -> None:
        start.wait()
        try:
            with database.write() as session:
                queue_once(session, owner, lambda: rows.add_job(session, owner), None, max_queued=1000)
        except QuotaError:
            pass

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as session:
        assert jobs.count(session, owner, "queued") == 2
        assert session.scalars(select(QueueAccount.arrivals)).all() == [2]
    database.dispose()
