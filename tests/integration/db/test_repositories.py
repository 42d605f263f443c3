"""What the repositories answer to the tenant who owns the rows."""

import hashlib

import pytest
from sqlalchemy import select, update

from app.contracts.workers import WorkerState
from app.db.blobs import read_blob, write_blob
from app.db.repositories import adapters, api_keys, base_models, files, jobs, workers
from app.db.session import Database
from app.db.tables import ApiKey, Blob, WorkerRow, db_now
from tests.integration.db import rows
from tests.integration.db.test_migrations import INFO


def add_version(database: Database, tenant: str, weights: bytes, name: str = "support") -> str:
    with database.write() as session:
        return adapters.add_uploaded_version(
            session, tenant, name=name, base_model=rows.BASE, weights=weights, config={"r": 8}, metrics={}
        ).adapter_id


def test_pages_run_through_everything_once_in_both_orders(database: Database, tenant: str) -> None:
    with database.write() as session:
        made = [rows.add_job(session, tenant).id for _ in range(7)]
    for order, expected in (("asc", made), ("desc", made[::-1])):
        seen: list[str] = []
        more, after = True, None
        while more:
            with database.read() as session:
                page, more = jobs.list(session, tenant, after=after, limit=3, order=order)
            seen += [job.id for job in page]
            after = seen[-1]
        assert seen == expected
    with database.read() as session:
        assert jobs.list(session, tenant, limit=7)[1] is False
        assert jobs.list(session, tenant, kind="adapt") == ([], False)
        assert jobs.count(session, tenant, "queued") == 7


def test_jobs_are_listed_by_metadata(database: Database, tenant: str) -> None:
    with database.write() as session:
        plain = rows.add_job(session, tenant, request={"metadata": None}).id
        red = rows.add_job(session, tenant, request={"metadata": {"team": "red", "run": "1"}}).id
        blue = rows.add_job(session, tenant, request={"metadata": {"team": "blue", "run": "1"}}).id
    with database.read() as session:

        def found(metadata: object) -> list[str]:
            return [job.id for job in jobs.list(session, tenant, metadata=metadata, order="asc")[0]]

        assert found({"run": "1"}) == [red, blue]
        assert found({"run": "1", "team": "blue"}) == [blue]
        assert found({"team": "green"}) == []
        assert found("none") == [plain]


def test_versions_are_paged_by_number(database: Database, tenant: str) -> None:
    for n in range(5):
        adapter_id = add_version(database, tenant, b"weights %d" % n)
    with database.read() as session:
        first, more = adapters.versions(session, tenant, adapter_id, limit=2)
        assert ([row.version for row in first], more) == ([5, 4], True)
        rest, more = adapters.versions(session, tenant, adapter_id, after=first[-1].id, limit=3)
        assert ([row.version for row in rest], more) == ([3, 2, 1], False)
        assert adapters.versions(session, tenant, adapter_id, after="ver-unknown") == ([], False)


def test_activate_and_roll_back_move_the_pointer_and_nothing_else(database: Database, tenant: str) -> None:
    for n in range(4):
        adapter_id = add_version(database, tenant, b"weights %d" % n)
    before = rows.dump(database, "adapters")
    with database.write() as session:
        assert adapters.activate(session, tenant, adapter_id, 3).active_version == 3
        assert adapters.rollback(session, tenant, adapter_id).active_version == 2
        assert adapters.rollback(session, tenant, adapter_id).active_version == 1
        with pytest.raises(adapters.NoSuchVersionError, match="no version below its active version 1"):
            adapters.rollback(session, tenant, adapter_id)
        assert adapters.activate(session, tenant, adapter_id, 4).active_version == 4
        assert adapters.rollback(session, tenant, adapter_id, 2).active_version == 2
        for version in (2, 3):
            with pytest.raises(adapters.NoSuchVersionError, match=f"version {version} is not earlier"):
                adapters.rollback(session, tenant, adapter_id, version)
        with pytest.raises(adapters.NoSuchVersionError, match="no version 9"):
            adapters.activate(session, tenant, adapter_id, 9)
        with pytest.raises(adapters.NoSuchVersionError, match="no version 0"):
            adapters.rollback(session, tenant, adapter_id, 0)
    with database.read() as session:
        adapter = adapters.get_by_name(session, tenant, "support")
    assert adapter is not None
    assert (adapter.active_version, adapter.latest_version) == (2, 4)
    assert rows.dump(database, "adapters") == before


def test_an_uploaded_version_holds_its_bytes(database: Database, tenant: str) -> None:
    adapter_id = add_version(database, tenant, b"weights")
    with database.read() as session:
        version = adapters.get_version(session, tenant, adapter_id, 1)
        assert version is not None
        assert (version.sha256, version.bytes) == (hashlib.sha256(b"weights").hexdigest(), 7)
        assert (version.job_id, version.parent_version, version.config) == (None, None, {"r": 8})
        assert read_blob(session, tenant, version.weights_id) == b"weights"


def test_an_upload_onto_another_base_writes_nothing(database: Database, tenant: str) -> None:
    add_version(database, tenant, b"weights")
    before = rows.dump(database)
    with pytest.raises(adapters.AdapterConflictError, match="use another name"), database.write() as session:
        adapters.add_uploaded_version(
            session, tenant, name="support", base_model="another", weights=b"other", config={}, metrics={}
        )
    assert rows.dump(database) == before


def test_a_deleted_adapter_is_gone(database: Database, tenant: str) -> None:
    adapter_id = add_version(database, tenant, b"weights")
    with database.write() as session:
        assert adapters.delete(session, tenant, adapter_id) is True
        assert adapters.delete(session, tenant, adapter_id) is False
        assert adapters.get(session, tenant, adapter_id) is None
        assert adapters.get_by_name(session, tenant, "support") is None
        assert adapters.list(session, tenant) == ([], False)
        with pytest.raises(adapters.NoSuchVersionError):
            adapters.activate(session, tenant, adapter_id, 1)
    assert add_version(database, tenant, b"weights") != adapter_id


@pytest.mark.parametrize("field", ["training_file", "validation_file", "retention_file"])
def test_a_file_that_a_job_uses_disappears_but_keeps_its_bytes(database: Database, tenant: str, field: str) -> None:
    with database.write() as session:
        blob = write_blob(session, tenant, b'{"text": "a"}\n')
        used, unused = (
            files.create(session, tenant, blob=blob, filename=name, purpose="fine-tune", examples=1)
            for name in ("used.jsonl", "unused.jsonl")
        )
        rows.add_job(session, tenant, **{field: used.id}, training_blob_id=blob.id)
    with database.write() as session:
        assert files.get(session, tenant, used.id, hold=True) is not None
        assert files.delete(session, tenant, unused.id) is True
        assert files.delete(session, tenant, used.id) is True
        assert files.delete(session, tenant, used.id) is False
        assert files.get(session, tenant, used.id) is None
        assert files.list(session, tenant) == ([], False)
        assert read_blob(session, tenant, blob.id) == b'{"text": "a"}\n'
        assert session.scalars(select(Blob.id)).all() == [blob.id]


def test_files_are_listed_by_purpose(database: Database, tenant: str) -> None:
    with database.write() as session:
        blob = write_blob(session, tenant, b"x")
        made = files.create(session, tenant, blob=blob, filename="a", purpose="fine-tune", examples=1)
    with database.read() as session:
        assert [file.id for file in files.list(session, tenant, purpose="fine-tune")[0]] == [made.id]
        assert files.list(session, tenant, purpose="batch") == ([], False)


def test_a_key_is_found_until_it_is_revoked_and_stored_as_a_hash(database: Database, tenant: str) -> None:
    with database.write() as session:
        key, plaintext = api_keys.create(session, tenant, "ci")
        another, other_plaintext = api_keys.create(session, tenant, "laptop")
    assert plaintext.startswith("tml-")
    assert len(plaintext) == 47
    assert plaintext != other_plaintext
    assert key.hint == plaintext[:10]
    assert plaintext not in repr(rows.dump(database))
    with database.write() as session:
        found = api_keys.find_by_plaintext(session, plaintext)
        assert found is not None
        assert (found.id, found.tenant_id) == (key.id, tenant)
        for wrong in ("", "tml-", plaintext[:-1], plaintext + "x", plaintext.upper(), key.sha256):
            assert api_keys.find_by_plaintext(session, wrong) is None
        assert api_keys.revoke(session, tenant, key.id) is True
        assert api_keys.revoke(session, tenant, key.id) is False
    with database.read() as session:
        assert api_keys.find_by_plaintext(session, plaintext) is None
        assert api_keys.find_by_plaintext(session, other_plaintext) is not None
        assert [row.id for row in api_keys.list(session, tenant)] == [key.id, another.id]


def test_the_use_of_a_key_is_noted_once_a_minute(database: Database, tenant: str) -> None:
    def last_used_at() -> float | None:
        with database.read() as session:
            return session.scalar(select(ApiKey.last_used_at))

    with database.write() as session:
        key, _plaintext = api_keys.create(session, tenant, "ci")
    assert last_used_at() is None
    with database.write() as session:
        api_keys.mark_used(session, tenant, key.id)
    first = last_used_at()
    assert first is not None
    with database.write() as session:
        api_keys.mark_used(session, tenant, key.id)
    assert last_used_at() == first
    with database.write() as session:
        session.execute(update(ApiKey).values(last_used_at=db_now() - 61))
        api_keys.mark_used(session, tenant, key.id)
    assert last_used_at() == pytest.approx(first, abs=30)


def test_a_base_model_is_renewed_in_place(database: Database) -> None:
    longer = INFO.model_copy(update={"context_length": 8192})
    with database.write() as session:
        base_models.upsert(session, INFO)
        base_models.upsert(session, longer)
    with database.read() as session:
        row = base_models.get(session, INFO.id)
        assert row is not None
        assert base_models.info_of(row) == longer
        assert base_models.get(session, "unknown") is None
        assert [found.id for found in base_models.list(session)] == [INFO.id]


def test_a_base_model_is_read_and_parsed_once(database: Database) -> None:
    with database.write() as session:
        base_models.upsert(session, INFO)
    held = []
    for _ in range(2):
        with database.read() as session:
            row = base_models.get(session, INFO.id)
            assert row is not None
            held.append(base_models.info_of(row))
    assert held[0] is held[1]
    assert "info" not in row.__dict__


STATE = WorkerState(
    training_slots=16,
    training_slots_free=15,
    serving_places=16,
    serving_places_free=0,
    open_requests=20,
    adapters=[("tnt-1", "adp-1", "ver-1")],
)


def test_a_worker_lives_while_its_heartbeat_is_recent(database: Database) -> None:
    with database.write() as session:
        base_models.upsert(session, INFO)
        for worker_id in ("a", "b"):
            workers.register(session, worker_id=worker_id, base_model=INFO.id, device="cpu")
        workers.register(session, worker_id="b", base_model=INFO.id, device="cuda")
    with database.write() as session:
        session.execute(update(WorkerRow).values(heartbeat_at=db_now() - 60))
        workers.heartbeat(session, "b", STATE)
        assert [(row.id, row.device) for row in workers.alive(session, 30)] == [("b", "cuda")]
        assert [row.id for row in workers.alive(session, 90)] == ["a", "b"]


def test_a_silent_worker_is_told_of_for_a_day(database: Database) -> None:
    with database.write() as session:
        base_models.upsert(session, INFO)
        for worker_id in ("a", "b"):
            workers.register(session, worker_id=worker_id, base_model=INFO.id, device="cpu")
    with database.write() as session:
        session.execute(update(WorkerRow).where(WorkerRow.id == "a").values(heartbeat_at=db_now() - 86_300))
        workers.heartbeat(session, "b", STATE)
    with database.read() as session:
        (a, silent), (b, _) = workers.seen(session)
        assert (a.id, a.serving_places, a.adapters) == ("a", 0, [])
        assert silent == pytest.approx(86_300, abs=30)
        assert (b.training_slots_free, b.open_requests, b.adapters) == (15, 20, [["tnt-1", "adp-1", "ver-1"]])
    with database.write() as session:
        session.execute(update(WorkerRow).where(WorkerRow.id == "a").values(heartbeat_at=db_now() - 86_500))
        assert [row.id for row, _ in workers.seen(session)] == ["b"]
        assert session.get(WorkerRow, "a") is not None
        workers.register(session, worker_id="c", base_model=INFO.id, device="cpu")
    with database.read() as session:
        assert session.get(WorkerRow, "a") is None
