"""Blobs: stored once per tenant, verified when read, never whole in memory when streamed."""

import io
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import delete, func, select, text, update

from app.db import blobs
from app.db.repositories import files, tenants
from app.db.session import Database
from app.db.tables import Blob, BlobChunk
from tests.integration.db import rows

MIB = 1024 * 1024


def store(database: Database, tenant: str, content: bytes) -> str:
    with database.write() as session:
        return blobs.write_blob(session, tenant, content).id


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB])
def test_content_comes_back_in_chunks(database: Database, tenant: str, size: int) -> None:
    content = bytes(range(251)) * (size // 251 + 1)
    blob_id = store(database, tenant, content[:size])
    with database.read() as session:
        assert blobs.read_blob(session, tenant, blob_id) == content[:size]
        chunks = list(blobs.iter_blob(session, tenant, blob_id))
    assert [len(chunk) for chunk in chunks] == [MIB] * (size // MIB) + [size % MIB] * (size % MIB > 0)


def test_a_stream_is_read_from_its_start(database: Database, tenant: str) -> None:
    stream = io.BytesIO(b"content")
    stream.seek(3)
    with database.write() as session:
        blob = blobs.write_blob(session, tenant, stream)
    assert blob.id == store(database, tenant, b"content")
    assert blob.bytes == 7


def test_the_same_content_is_stored_once_within_a_tenant_and_never_shared(
    database: Database, tenant: str, other_tenant: str
) -> None:
    first = store(database, tenant, b"content")
    assert store(database, tenant, b"content") == first
    assert store(database, tenant, b"other content") != first
    theirs = store(database, other_tenant, b"content")
    assert theirs != first
    assert store(database, other_tenant, b"content") == theirs
    assert store(database, tenant, b"content") == first
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(BlobChunk)) == 3
        for function in (blobs.read_blob, blobs.iter_blob, blobs.iter_lines):
            with pytest.raises(blobs.BlobNotFoundError):
                function(session, tenant, theirs)
    with database.write() as session:
        assert not blobs.delete_blob_if_unused(session, tenant, theirs)


def test_twins_written_at_once_are_one_blob(database: Database, tenant: str) -> None:
    barrier = threading.Barrier(8)
    stored: list[str] = []

    def write() -> None:
        barrier.wait()
        stored.append(store(database, tenant, b"content" * 1000))

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stored) == 8
    assert len(set(stored)) == 1
    with database.read() as session:
        assert blobs.read_blob(session, tenant, stored[0]) == b"content" * 1000


DAMAGE: dict[str, Callable[[str], object]] = {
    "a changed byte": lambda id: update(BlobChunk).where(BlobChunk.position == 1).values(data=b"y" + b"x" * (MIB - 1)),
    "a short chunk": lambda id: update(BlobChunk).where(BlobChunk.position == 1).values(data=b"x"),
    "a missing chunk": lambda id: delete(BlobChunk).where(BlobChunk.position == 1),
    "a missing end": lambda id: delete(BlobChunk).where(BlobChunk.position == 2),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_detected(database: Database, tenant: str, damage: str) -> None:
    blob_id = store(database, tenant, b"x" * (2 * MIB + 5))
    with database.write() as session:
        session.execute(DAMAGE[damage](blob_id))
    with database.read() as session:
        with pytest.raises(blobs.BlobCorruptError, match=blob_id):
            blobs.read_blob(session, tenant, blob_id)
        with pytest.raises(blobs.BlobCorruptError, match=blob_id):
            list(blobs.iter_lines(session, tenant, blob_id))


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_lines_run_over_chunk_borders(
    database: Database, tenant: str, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "CHUNK_BYTES", 8)
    lines = [b"", b"1234567", b"12345678", b"a" * 30, b"", b"x\r", b"last"]
    blob_id = store(database, tenant, b"\n".join(lines) + end)
    with database.read() as session:
        assert list(blobs.iter_lines(session, tenant, blob_id)) == lines


def test_a_line_longer_than_a_chunk(database: Database, tenant: str) -> None:
    blob_id = store(database, tenant, b"first\n" + b"a" * (2 * MIB) + b"\nlast")
    with database.read() as session:
        assert list(blobs.iter_lines(session, tenant, blob_id)) == [b"first", b"a" * (2 * MIB), b"last"]


def test_twenty_megabytes_are_written_and_read_in_pieces(database: Database, tenant: str, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"0123456789abcde\n" * (20 * MIB // 16))
    tracemalloc.start()
    try:
        with path.open("rb") as file, database.write() as session:
            blob = blobs.write_blob(session, tenant, file)
        written = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        with database.read() as session:
            lines = sum(1 for _ in blobs.iter_lines(session, tenant, blob.id))
        read = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        content = path.read_bytes()
        with database.write() as session:
            assert blobs.write_blob(session, tenant, content).id == blob.id
            blobs.write_blob(session, tenant, content[:-1])
        rewritten = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert blob.bytes == 20 * MIB
    assert lines == 20 * MIB // 16
    assert written < 8 * MIB
    assert read < 16 * MIB  # one chunk and its 65,536 small lines
    assert rewritten < 48 * MIB  # the two contents themselves, and a few chunks


def test_a_blob_goes_when_nothing_refers_to_it(database: Database, tenant: str) -> None:
    with database.write() as session:
        blob = blobs.write_blob(session, tenant, b"content")
        file = files.create(session, tenant, blob=blob, filename="a.jsonl", purpose="fine-tune", examples=1)
        assert not blobs.delete_blob_if_unused(session, tenant, blob.id)
        assert files.delete(session, tenant, file.id)
    with database.read() as session:
        assert session.scalars(select(Blob)).all() == []
        assert session.scalars(select(BlobChunk)).all() == []
    with database.write() as session:
        assert not blobs.delete_blob_if_unused(session, tenant, blob.id)


def test_every_kind_of_reference_keeps_a_blob(database: Database) -> None:
    assert sorted(f"{column.table.name}.{column.name}" for column in blobs._REFERENCES) == [
        "adapter_versions.weights_id",
        "files.blob_id",
        "job_checkpoints.weights_id",
        "job_snapshots.tensors_id",
        "jobs.retention_blob_id",
        "jobs.training_blob_id",
        "jobs.validation_blob_id",
    ]


def test_deleting_and_reusing_a_blob_at_once_never_loses_it(database: Database, tenant: str) -> None:
    for turn in range(20):
        blob_id = store(database, tenant, b"content")
        barrier = threading.Barrier(2)
        errors: list[Exception] = []

        def delete_it(blob_id: str = blob_id, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            with database.write() as session:
                blobs.delete_blob_if_unused(session, tenant, blob_id)

        def reuse(barrier: threading.Barrier = barrier, errors: list[Exception] = errors, turn: int = turn) -> None:
            barrier.wait()
            try:
                with database.write() as session:
                    rows.add_job(session, tenant, training_blob_id=blobs.write_blob(session, tenant, b"content").id)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=delete_it), threading.Thread(target=reuse)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        claimed = rows.claim_one(database)
        with database.read() as session:
            assert blobs.read_blob(session, tenant, claimed.training_blob_id) == b"content"


def test_a_blob_about_to_be_used_again_is_not_deleted(postgres_url: str) -> None:
    database = Database(postgres_url)
    with database.write() as session:
        tenant = tenants.create(session, "acme").id
        blob_id = blobs.write_blob(session, tenant, b"content").id
    deleted: list[bool] = []

    def delete_it() -> None:
        with database.write() as session:
            deleted.append(blobs.delete_blob_if_unused(session, tenant, blob_id))

    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    with database.write() as session:
        again = blobs.write_blob(session, tenant, b"content").id
        thread = threading.Thread(target=delete_it)
        thread.start()
        while thread.is_alive() and not session.scalar(waiting):
            session.execute(text("SELECT pg_stat_clear_snapshot()"))
        rows.add_job(session, tenant, training_blob_id=again)
    thread.join()
    assert (again, deleted) == (blob_id, [False])
    with database.read() as session:
        assert blobs.read_blob(session, tenant, blob_id) == b"content"
    database.dispose()
