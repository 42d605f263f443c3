"""Sessions: writes wait for their turn, reads see one state and change nothing."""

import subprocess
import sys
import threading
import time

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError, OperationalError

from app.db.repositories import jobs, tenants
from app.db.session import Database, dump_json
from app.db.tables import JobEvent, Tenant
from tests.integration.db import rows

WRITER = """
import sys
from app.db.repositories import jobs
from app.db.repositories.jobs import NewEvent
from app.db.session import Database
from app.db.tables import Tenant

url, tenant, job, name = sys.argv[1:]
database = Database(url)
for n in range(50):
    with database.write() as session:
        seen = session.get_one(Tenant, tenant).weight  # read first: the classic way to a locked database
        jobs.add_event(session, tenant, job, NewEvent(f"{name} {n}"))
        session.get_one(Tenant, tenant).weight = seen + 1
    with database.read() as session:
        assert jobs.get(session, tenant, job) is not None
"""


def test_four_processes_write_at_once(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with database.write() as session:
        tenant = tenants.create(session, "acme").id
        job = rows.add_job(session, tenant).id
    command = [sys.executable, "-c", WRITER, sqlite_url, tenant, job]
    processes = [subprocess.Popen([*command, f"writer-{n}"], stderr=subprocess.PIPE, text=True) for n in range(4)]
    assert [(process.communicate()[1], process.returncode) for process in processes] == [("", 0)] * 4
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(JobEvent)) == 201
        assert session.get_one(Tenant, tenant).weight == 201
    database.dispose()


def test_a_write_is_undone_whole_when_an_exception_leaves_it(database: Database) -> None:
    def fail_halfway() -> None:
        with database.write() as session:
            tenants.create(session, "acme")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    with database.read() as session:
        assert tenants.list(session) == []


def test_a_read_session_cannot_write(database: Database) -> None:
    with database.read() as session, pytest.raises(DBAPIError, match=r"read-?only"):
        tenants.create(session, "acme")
    with database.write() as session:
        tenants.create(session, "acme")


def test_a_read_sees_one_state(database: Database, tenant: str) -> None:
    with database.read() as reading:
        assert [row.name for row in tenants.list(reading)] == ["acme"]
        with database.write() as session:
            tenants.create(session, "globex")
        assert [row.name for row in tenants.list(reading)] == ["acme"]
    with database.read() as reading:
        assert [row.name for row in tenants.list(reading)] == ["acme", "globex"]
    with database.write() as writing:  # the same pooled connection, no longer bound to the reader's rules
        tenants.create(writing, "initech")
        assert writing.scalar(select(func.count()).select_from(Tenant)) == 3


def test_a_write_sees_what_the_one_before_it_committed(database: Database, tenant: str) -> None:
    inside = threading.Event()
    seen_from_outside: list[float] = []

    def slow() -> None:
        with database.write() as session:
            session.get_one(Tenant, tenant, with_for_update=True).weight = 5.0
            session.flush()
            inside.set()
            with database.read() as other:
                seen_from_outside.append(other.get_one(Tenant, tenant).weight)

    thread = threading.Thread(target=slow)
    thread.start()
    inside.wait()
    with database.write() as session:
        assert session.get_one(Tenant, tenant, with_for_update=True).weight == 5.0
    thread.join()
    assert seen_from_outside == [1.0]


def test_sqlite_is_durable_and_checks_foreign_keys(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with database.write() as session:
        pragmas = {
            name: session.scalar(text(f"PRAGMA {name}")) for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    with pytest.raises(DBAPIError, match="FOREIGN KEY"), database.write() as session:
        jobs.add_event(session, "tnt-unknown", "ftjob-unknown", jobs.NewEvent("hello"))
    database.dispose()


def test_errors_do_not_show_what_was_to_be_stored(database: Database) -> None:
    with pytest.raises(DBAPIError) as caught, database.write() as session:
        session.execute(text("INSERT INTO nowhere VALUES (:data)"), {"data": "a secret"})
    assert "a secret" not in str(caught.value)


def test_a_write_waits_for_its_turn_no_longer_than_it_is_told(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with database.write():
        started = time.monotonic()
        with pytest.raises(OperationalError, match="locked"), database.write(wait_seconds=0.05):
            pass
        assert time.monotonic() - started < 30
    with database.write() as session:
        assert session.scalar(text("PRAGMA busy_timeout")) == 60_000
    database.dispose()


def test_other_databases_are_refused() -> None:
    with pytest.raises(ValueError, match="unsupported database 'mysql'"):
        Database("mysql://localhost/graft")


def test_json_has_no_nan() -> None:
    assert (
        dump_json({"a": [1.5, float("nan")], "b": (float("inf"), "x", None)})
        == '{"a": [1.5, null], "b": [null, "x", null]}'
    )
