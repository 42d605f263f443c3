"""Nobody starves: a thousand tenants on one queue, one of them with ten thousand jobs there before all others."""

import random
from collections import Counter

import pytest
from sqlalchemy import insert

from app.core.ids import new_id
from app.db import queue
from app.db.blobs import write_blob
from app.db.queue.accounts import CLAIM_TOKENS
from app.db.repositories import queue_accounts, tenants
from app.db.session import Database
from app.db.tables import Job
from tests.integration.db import rows

TENANTS, JOBS = 1000, 10_000
ALONE = 10
HOG_TOKENS = 40 * CLAIM_TOKENS
"""What each of the ten thousand jobs trains: as much as forty claims are charged."""


@pytest.fixture
def crowd(sqlite_url: str) -> Database:
    """A thousand tenants."""
    database = Database(sqlite_url)
    with database.write() as session:
        for n in range(TENANTS):
            tenants.create(session, f"tenant-{n}")
    return database


def fill(database: Database, owners: list[str], count: int) -> None:
    """Queue that many jobs of each at once: one by one it would take longer than the test."""
    with database.write() as session:
        job = {
            "kind": "fine_tune", "model": rows.BASE, "base_model": rows.BASE, "adapter_name": "a", "request": {},
            "training_blob_id": write_blob(session, owners[0], b"data").id, "config": rows.CONFIG.model_dump(),
            "trainable_parameters": 0, "optimizer_bytes": 0,
        }  # fmt: skip
        values = [{"id": new_id("ftjob"), "tenant_id": owner, **job} for owner in owners for _ in range(count)]
        session.execute(insert(Job), values)
        for owner in owners:
            queue_accounts.join(session, owner, rows.BASE)


class Workers:
    """Places for jobs, of which some report and end from time to time: all of the one who has thousands."""

    def __init__(self, database: Database, hog: str, seed: int) -> None:
        self.database, self.hog, self.draw = database, hog, random.Random(seed)
        self.running: list[queue.ClaimedJob] = []

    def claim(self) -> str:
        """Claim the next job, let it train, and return its tenant."""
        job = rows.claim_one(self.database)
        mine = job.lease.tenant_id == self.hog
        if mine or self.draw.random() < 0.1:
            tokens = HOG_TOKENS if mine else self.draw.randrange(HOG_TOKENS)
            queue.record_progress(self.database, job.lease, rows.METRICS.model_copy(update={"tokens": tokens}))
        self.running.append(job)
        if mine or self.draw.random() < 0.1:
            ended = self.running.pop(self.draw.randrange(len(self.running)))
            queue.finish_failed(self.database, ended.lease, {"code": "x", "message": "y", "param": None})
        return job.lease.tenant_id


def test_a_thousand_tenants_are_served_whatever_one_of_them_has_queued(crowd: Database) -> None:
    with crowd.read() as session:
        hog, *others = [tenant.id for tenant in tenants.list(session)]
    fill(crowd, [hog], JOBS)
    workers = Workers(crowd, hog, seed=1)
    assert {workers.claim() for _ in range(ALONE)} == {hog}

    # Tenants that come one by one while only the one with thousands of jobs is in line wait for one claim at most.
    early, late = others[:20], others[20:]
    for owner in early:
        fill(crowd, [owner], 1)
        assert owner in (workers.claim(), workers.claim())

    # All others at once: each is served before the one with thousands of jobs has a second turn.
    fill(crowd, late, 1)
    turns = Counter(workers.claim() for _ in range(len(late) + 1))
    assert [owner for owner in late if turns[owner] != 1] == []
    assert turns[hog] == 1
    crowd.dispose()
