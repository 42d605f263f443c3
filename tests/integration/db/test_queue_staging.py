"""Large resume points and versions are stored in several transactions, under the fence, and leave nothing half done."""

import pytest
from sqlalchemy import select

from app.db import queue
from app.db.blobs import CHUNK_BYTES, read_blob
from app.db.queue import Lease, NewVersion, PublishError, StaleLeaseError
from app.db.queue.staging import BATCH_BYTES
from app.db.repositories import adapters
from app.db.session import Database
from app.db.tables import Blob
from tests.integration.db import rows

LARGE = bytes(range(256)) * (2 * BATCH_BYTES // 256) + b"and a bit"


def start(database: Database, tenant: str) -> Lease:
    with database.write() as session:
        rows.add_job(session, tenant)
    return rows.claim_one(database).lease


def test_a_large_snapshot_comes_back_and_lets_others_write_meanwhile(
    database: Database, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = start(database, tenant)
    beats: list[queue.Asked] = []
    extend = queue.staging.extend_staged

    def extend_then_beat(*arguments: object) -> None:
        extend(*arguments)
        beats.append(queue.heartbeat(database, lease, 30.0))

    monkeypatch.setattr(queue.staging, "extend_staged", extend_then_beat)
    queue.save_snapshot(database, lease, 1, LARGE, {"a": 1})
    assert beats == [(False, False)] * 3
    with database.read() as session:
        saved = queue.load_snapshot(session, tenant, lease.job_id)
    assert saved is not None
    assert (saved.tensors == LARGE, saved.manifest) == (True, {"a": 1})


def test_a_large_version_is_published_in_the_transaction_that_ends_the_job(database: Database, tenant: str) -> None:
    lease = start(database, tenant)
    version = queue.finish_succeeded(database, lease, rows.RESULT, NewVersion(LARGE, {"r": 16}, {}))
    assert version is not None
    with database.read() as session:
        assert read_blob(session, tenant, version.weights_id) == LARGE
    assert version.bytes == len(LARGE)


def test_a_refused_large_version_leaves_no_bytes(database: Database, tenant: str) -> None:
    with database.write() as session:
        adapters.add_uploaded_version(
            session, tenant, name="support", base_model="other", weights=b"w", config={}, metrics={}
        )
    lease = start(database, tenant)
    before = rows.dump(database, "jobs", "job_events", "daily_tokens")
    with pytest.raises(PublishError, match="stands on base model"):
        queue.finish_succeeded(database, lease, rows.RESULT, NewVersion(LARGE, {"r": 16}, {}))
    assert rows.dump(database, "jobs", "job_events", "daily_tokens") == before


def test_a_worker_that_loses_its_lease_in_between_stores_nothing(
    database: Database, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = start(database, tenant)
    extend = queue.staging.extend_staged

    def extend_then_lose(*arguments: object) -> None:
        extend(*arguments)
        rows.expire_lease(database, lease.job_id)
        assert rows.claim_one(database, "worker-2").lease.token == lease.token + 1

    monkeypatch.setattr(queue.staging, "extend_staged", extend_then_lose)
    with pytest.raises(StaleLeaseError):
        queue.save_snapshot(database, lease, 1, LARGE, {})
    with database.read() as session:
        assert queue.load_snapshot(session, tenant, lease.job_id) is None
    monkeypatch.undo()
    second = Lease(lease.job_id, tenant, lease.token + 1, "worker-2")
    queue.finish_failed(database, second, {"code": "x", "message": "y", "param": None})
    with database.read() as session:
        left = session.scalars(select(Blob.bytes)).all()
    assert max(left) < CHUNK_BYTES
