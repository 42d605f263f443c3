"""Migrations: up, down and up again on filled tables, and no difference between them and the tables in code."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from app.contracts.base_models import BaseModelInfo
from app.db import migrate, queue
from app.db.blobs import write_blob
from app.db.repositories import api_keys, base_models, files, idempotency, workers
from app.db.session import Database
from app.db.tables import Base
from tests.integration.db import rows

INFO = BaseModelInfo(
    id=rows.BASE,
    architecture="llama",
    parameters=135_000_000,
    context_length=2048,
    vocab_size=49152,
    dtype="float32",
    quantization="none",
    modules={},
    default_targets=["q_proj"],
    tokenizer_json="{}",
    chat_template=None,
    bos_token_id=1,
    eos_token_ids=[2],
)


def fill_every_table(database: Database, tenant: str) -> None:
    with database.write() as session:
        api_keys.create(session, tenant, "ci")
        base_models.upsert(session, INFO)
        workers.register(session, worker_id="worker-1", base_model=rows.BASE, device="cpu")
        blob = write_blob(session, tenant, b'{"text": "a"}\n')
        file = files.create(session, tenant, blob=blob, filename="a.jsonl", purpose="fine-tune", examples=1)
        job = rows.add_job(session, tenant, training_file=file.id, training_blob_id=blob.id)
        idempotency.record(session, tenant, route="jobs", key="k", request_sha256="0" * 64, job_id=job.id)
        rows.add_job(session, tenant)
    first = rows.claim_one(database)
    queue.save_checkpoint(database, first.lease, 1, b"checkpoint", {"r": 16}, {})
    queue.finish_succeeded(database, first.lease, rows.RESULT, rows.VERSION)
    second = rows.claim_one(database)
    queue.record_progress(database, second.lease, rows.METRICS)
    queue.save_snapshot(database, second.lease, 1, b"tensors", {"step": 1})


def test_up_down_up_on_filled_tables(database: Database, database_url: str, tenant: str) -> None:
    fill_every_table(database, tenant)
    assert [name for name, found in rows.dump(database).items() if not found] == []

    migrate.downgrade(database_url, "base")
    with database.read() as session:
        assert inspect(session.connection()).get_table_names() == ["alembic_version"]
    assert not migrate.is_current(database)

    migrate.upgrade(database_url)
    assert migrate.is_current(database)
    assert migrate.differences(database) == []
    assert [name for name, found in rows.dump(database).items() if found] == []


def test_the_migrated_schema_equals_the_tables(database: Database) -> None:
    assert migrate.differences(database) == []


def test_a_missing_column_is_reported_as_a_difference(database: Database) -> None:
    with database.write() as session:
        session.execute(text("ALTER TABLE workers DROP COLUMN device"))
    assert [difference[0] for difference in migrate.differences(database)] == ["add_column"]


def test_column_defaults_equal_those_in_code(database: Database) -> None:
    # alembic cannot compare defaults that are expressions, so a row is made by the defaults alone
    with database.write() as session:
        session.execute(text("INSERT INTO tenants (id, name) VALUES ('tnt-1', 'acme')"))
        now = session.scalar(text(migrate_clock(database)))
        created_at, weight = session.execute(text("SELECT created_at, weight FROM tenants")).one()
    assert created_at == pytest.approx(now, abs=5)
    assert weight == 1
    defaults = {
        (table.name, column.name)
        for table in Base.metadata.sorted_tables
        for column in table.columns
        if column.server_default is not None
    }
    with database.read() as session:
        inspector = inspect(session.connection())
        migrated = {
            (table, column["name"])
            for table in Base.metadata.tables
            for column in inspector.get_columns(table)
            if column["default"] is not None
        }
    assert migrated == defaults


def migrate_clock(database: Database) -> str:
    clocks = {
        "sqlite": "SELECT CAST(strftime('%s', 'now') AS REAL)",
        "postgresql": "SELECT extract(epoch from now())::float8",
    }
    return clocks[database.dialect]


def test_several_processes_may_migrate_at_once(database: Database, database_url: str) -> None:
    migrate.downgrade(database_url, "base")
    command = [sys.executable, "-c", "import sys, app.db.migrate as m; m.upgrade(sys.argv[1])", database_url]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [(process.communicate()[1], process.returncode) for process in processes] == [("", 0)] * 3
    assert migrate.is_current(database)


def test_only_migrations_make_tables() -> None:
    root = Path(migrate.__file__).parents[2]
    makers = [
        str(path.relative_to(root))
        for room in ("app", "workers", "migrations")
        for path in (root / room).rglob("*.py")
        if "create_all" in path.read_text() or "create_table" in path.read_text()
    ]
    assert {Path(maker).parent.name for maker in makers} == {"versions"}
