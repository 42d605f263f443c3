"""The fence: a worker that lost its lease writes nothing, whatever it tries."""

from collections.abc import Callable

import pytest

from app.db import queue
from app.db.queue import Lease
from app.db.repositories import jobs
from app.db.session import Database
from tests.integration.db import rows

ERROR = {"code": "no_trainable_tokens", "message": "nothing to train on", "param": "training_file"}
EVENT = jobs.NewEvent("epoch 1 done")
ROLLED_BACK = rows.RESULT.model_copy(update={"rolled_back": True, "rollback_reason": "perplexity grew"})

WRITES: dict[str, Callable[[Database, Lease], object]] = {
    "heartbeat": lambda db, lease: queue.heartbeat(db, lease, 30.0),
    "record_progress": lambda db, lease: queue.record_progress(db, lease, rows.METRICS, [EVENT]),
    "save_snapshot": lambda db, lease: queue.save_snapshot(db, lease, 4, b"stale tensors", {"step": 4}),
    "save_checkpoint": lambda db, lease: queue.save_checkpoint(db, lease, 4, b"stale weights", {}, {}),
    "finish_succeeded": lambda db, lease: queue.finish_succeeded(db, lease, rows.RESULT, rows.VERSION),
    "finish_rolled_back": lambda db, lease: queue.finish_succeeded(db, lease, ROLLED_BACK, None),
    "finish_failed": lambda db, lease: queue.finish_failed(db, lease, ERROR),
    "finish_cancelled": queue.finish_cancelled,
    "give_back": queue.give_back,
}


@pytest.fixture
def lease(database: Database, tenant: str) -> Lease:
    with database.write() as session:
        rows.add_job(session, tenant)
    return rows.claim_one(database).lease


@pytest.mark.parametrize("name", WRITES)
def test_a_stale_worker_writes_nothing_into_a_job_of_another(database: Database, lease: Lease, name: str) -> None:
    rows.expire_lease(database, lease.job_id)
    newer = rows.claim_one(database, "worker-2").lease
    before = rows.dump(database)
    with pytest.raises(queue.StaleLeaseError, match=f"lease {lease.token} of worker worker-1"):
        WRITES[name](database, lease)
    assert rows.dump(database) == before
    WRITES[name](database, newer)
    assert rows.dump(database) != before


@pytest.mark.parametrize("end", ["finish_succeeded", "finish_failed", "finish_cancelled", "give_back"])
def test_nothing_is_written_into_a_job_that_has_ended(database: Database, lease: Lease, end: str) -> None:
    WRITES[end](database, lease)
    before = rows.dump(database)
    for write in WRITES.values():
        with pytest.raises(queue.StaleLeaseError):
            write(database, lease)
    assert rows.dump(database) == before


def test_a_lease_of_another_tenant_is_refused(database: Database, lease: Lease, other_tenant: str) -> None:
    forged = Lease(job_id=lease.job_id, tenant_id=other_tenant, token=lease.token, worker_id=lease.worker_id)
    with pytest.raises(queue.StaleLeaseError):
        queue.finish_succeeded(database, forged, rows.RESULT, rows.VERSION)


def test_an_expired_lease_that_nobody_took_still_finishes(database: Database, lease: Lease) -> None:
    rows.expire_lease(database, lease.job_id)
    version = queue.finish_succeeded(database, lease, rows.RESULT, rows.VERSION)
    assert version is not None
    assert version.version == 1
