"""The position of a waiting job is the number of claims that come before its own."""

import random

import pytest

from app.db import queue
from app.db.repositories import base_models, jobs, pauses, tenants, workers
from app.db.session import Database
from app.services.queue_places import QueuePlace, queue_places
from tests.integration.db import rows
from tests.integration.db.test_migrations import INFO


def places(database: Database, tenant: str) -> dict[str, QueuePlace]:
    with database.read() as session:
        mine, more = jobs.list(session, tenant, limit=100)
        assert not more
        return queue_places(session, tenant, mine, heartbeat_seconds=5)


def host(database: Database) -> None:
    """Let a worker for the base model live."""
    with database.write() as session:
        base_models.upsert(session, INFO)
        workers.register(session, worker_id="worker-1", base_model=rows.BASE, device="cpu")


@pytest.mark.parametrize("seed", range(4))
def test_positions_foretell_the_claims_to_come(database: Database, seed: int) -> None:
    draw = random.Random(seed)
    with database.write() as session:
        owners = [tenants.create(session, f"tenant-{n}").id for n in range(5)]
        for owner in owners:
            tenants.set_limits(session, owner, weight=draw.choice([0.5, 1.0, 1.0, 4.0]))
        for _ in range(40):
            rows.add_job(session, draw.choice(owners), priority=draw.choice(["high", "normal", "low"]))
    for _ in range(6):
        claimed = rows.claim_one(database)
        tokens = draw.randrange(0, 5000)
        queue.record_progress(database, claimed.lease, rows.METRICS.model_copy(update={"tokens": tokens}))
    foretold = {place.position: job_id for owner in owners for job_id, place in places(database, owner).items()}
    assert sorted(foretold, key=lambda position: -1 if position is None else position) == list(range(34))
    assert [rows.claim_one(database).lease.job_id for _ in range(34)] == [foretold[n] for n in range(34)]


def test_what_a_job_waits_for(database: Database, tenant: str, other_tenant: str) -> None:
    with database.write() as session:
        first, second, paused = (rows.add_job(session, tenant).id for _ in range(3))
        elsewhere = rows.add_job(session, tenant, base_model="another").id
        pauses.request(session, tenant, paused)
    host(database)
    waits = {
        first: QueuePlace(0, "waiting_for_worker"),
        second: QueuePlace(1, "waiting_for_worker"),
        elsewhere: QueuePlace(0, "no_worker_for_base_model"),
        paused: QueuePlace(None, "paused"),
    }
    assert places(database, tenant) == waits
    running = rows.claim_one(database)
    assert places(database, tenant).keys() == {second, elsewhere, paused}
    with database.write() as session:
        tenants.set_limits(session, tenant, max_running_jobs=1)
    assert places(database, tenant)[second] == QueuePlace(None, "tenant_running_cap")
    queue.record_progress(database, running.lease, rows.METRICS)
    with database.write() as session:
        tenants.set_limits(session, tenant, max_running_jobs=None, tokens_per_day=rows.METRICS.tokens)
    assert places(database, tenant)[second] == QueuePlace(None, "tenant_daily_quota")
    assert places(database, tenant)[paused] == QueuePlace(None, "paused")
    with database.write() as session:
        other = rows.add_job(session, other_tenant).id
    assert places(database, other_tenant) == {other: QueuePlace(0, "waiting_for_worker")}
