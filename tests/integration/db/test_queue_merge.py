"""A merge's output: stored in pieces under the fence, a file of the tenant in the end, or nothing at all."""

import hashlib
import io

import pytest
from sqlalchemy import func, select

from app.contracts.merge import MergeConfig, MergeResult
from app.db import queue
from app.db.blobs import CHUNK_BYTES, BlobNotFoundError, extend_blob, read_blob, write_blob
from app.db.queue import ClaimedMerge, StagedBytes, StaleLeaseError
from app.db.repositories import adapters, files, jobs
from app.db.session import Database
from app.db.tables import Blob, BlobChunk, File
from tests.integration.db import rows

CONTENT = bytes(range(256)) * (CHUNK_BYTES // 128) + b"the end"
PIECES = [CONTENT[i : i + CHUNK_BYTES] for i in range(0, len(CONTENT), CHUNK_BYTES)]
CONFIG = MergeConfig(format="hf", version=1, max_bytes=1 << 30)


def add_merge(database: Database, tenant: str) -> str:
    """Queue a merge of a new version and return the job's id."""
    with database.write() as session:
        version = adapters.add_uploaded_version(
            session, tenant, name="support", base_model=rows.BASE, weights=b"weights", config={}, metrics={}
        )
        job = rows.add_job(
            session, tenant, kind="merge", config=CONFIG, adapter_id=version.adapter_id, parent_version_id=version.id,
            training_blob_id=version.weights_id, trainable_parameters=0, optimizer_bytes=0,
        )  # fmt: skip
        return job.id


def claim(database: Database, worker_id: str = "worker-1") -> ClaimedMerge:
    claimed = queue.claim(database, worker_id=worker_id, base_model=rows.BASE, lease_seconds=30.0, max_attempts=3)
    assert isinstance(claimed, ClaimedMerge)
    return claimed


def store(database: Database, claimed: ClaimedMerge) -> StagedBytes:
    blob_id = queue.begin_staging(database, claimed.lease)
    for position, piece in enumerate(PIECES):
        queue.extend_staged(database, claimed.lease, blob_id, position, [piece])
    return StagedBytes(blob_id, hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


def count(database: Database, table: type[Blob] | type[BlobChunk] | type[File]) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_an_output_becomes_a_file_of_the_tenant(database: Database, tenant: str) -> None:
    job_id = add_merge(database, tenant)
    claimed = claim(database)
    assert (claimed.config, claimed.adapter_name, claimed.attempts) == (CONFIG, "support", 1)
    output = store(database, claimed)
    queue.extend_staged(database, claimed.lease, output.blob_id, 0, PIECES[:1])  # a commit whose answer was lost
    file = queue.finish_merged(database, claimed.lease, output, "support-1.tar")
    job = rows.read_job(database, job_id)
    assert (job.status, job.result_version_id) == ("succeeded", None)
    assert MergeResult.model_validate(job.result) == MergeResult(
        file=file.id, filename="support-1.tar", bytes=len(CONTENT), sha256=output.sha256
    )
    assert (file.purpose, file.bytes, file.filename) == ("merge-output", len(CONTENT), "support-1.tar")
    with database.read() as session:
        assert read_blob(session, tenant, file.blob_id) == CONTENT
        newest = jobs.events(session, tenant, job_id)[0][0]
    assert newest.message == f"Job succeeded: {file.id} holds support-1.tar, {len(CONTENT)} bytes"


def test_a_finished_output_grows_no_more(database: Database, tenant: str) -> None:
    add_merge(database, tenant)
    claimed = claim(database)
    file = queue.finish_merged(database, claimed.lease, store(database, claimed), "support-1.tar")
    with database.write() as session, pytest.raises(BlobNotFoundError):
        extend_blob(session, tenant, file.blob_id, len(PIECES), [b"more"])


def test_deleting_the_file_frees_its_bytes(database: Database, tenant: str) -> None:
    add_merge(database, tenant)
    before = count(database, BlobChunk)
    claimed = claim(database)
    file = queue.finish_merged(database, claimed.lease, store(database, claimed), "support-1.tar")
    with database.write() as session:
        assert files.delete(session, tenant, file.id)
    assert (count(database, BlobChunk), count(database, File)) == (before, 0)


def test_content_that_is_there_already_is_kept_once(database: Database, tenant: str) -> None:
    with database.write() as session:
        known = write_blob(session, tenant, io.BytesIO(CONTENT)).id
    add_merge(database, tenant)
    before = count(database, Blob)
    claimed = claim(database)
    file = queue.finish_merged(database, claimed.lease, store(database, claimed), "support-1.tar")
    assert (file.blob_id, count(database, Blob)) == (known, before)


def test_a_half_stored_output_is_found_by_nobody_and_goes_with_the_job(database: Database, tenant: str) -> None:
    add_merge(database, tenant)
    before = rows.dump(database, "jobs", "job_events", "queue_accounts")
    claimed = claim(database)
    store(database, claimed)
    with database.write() as session:
        own = write_blob(session, tenant, io.BytesIO(CONTENT))
        assert own.bytes == len(CONTENT)
        session.delete(own)
    queue.finish_failed(database, claimed.lease, {"code": "x", "message": "y", "param": None})
    assert rows.dump(database, "jobs", "job_events", "queue_accounts") == before


@pytest.mark.parametrize("end", ["cancelled while queued", "taken over"])
def test_every_way_to_end_drops_what_was_stored(database: Database, tenant: str, end: str) -> None:
    job_id = add_merge(database, tenant)
    before = count(database, BlobChunk)
    claimed = claim(database)
    store(database, claimed)
    if end == "taken over":
        rows.expire_lease(database, job_id)
        second = claim(database, "worker-2")
        queue.begin_staging(database, second.lease)
    else:
        queue.give_back(database, claimed.lease)
        with database.write() as session:
            jobs.request_cancel(session, tenant, job_id)
            queue.drop_leftovers(session, tenant, job_id)
    assert count(database, BlobChunk) == before


def test_a_stale_worker_stores_and_finishes_nothing(database: Database, tenant: str) -> None:
    job_id = add_merge(database, tenant)
    slow = claim(database)
    output = store(database, slow)
    rows.expire_lease(database, job_id)
    fast = claim(database, "worker-2")
    before = rows.dump(database)
    with pytest.raises(StaleLeaseError):
        queue.begin_staging(database, slow.lease)
    with pytest.raises(StaleLeaseError):
        queue.extend_staged(database, slow.lease, output.blob_id, 9, [b"late"])
    with pytest.raises(StaleLeaseError):
        queue.finish_merged(database, slow.lease, output, "late.tar")
    assert rows.dump(database) == before
    file = queue.finish_merged(database, fast.lease, store(database, fast), "support-1.tar")
    with pytest.raises(StaleLeaseError):
        queue.finish_merged(database, fast.lease, output, "twice.tar")
    assert [row.id for row in _files(database)] == [file.id]


def _files(database: Database) -> list[File]:
    with database.read() as session:
        return list(session.scalars(select(File)))
