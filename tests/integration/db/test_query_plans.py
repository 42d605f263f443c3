"""The hot queries use their indexes, on PostgreSQL with enough rows for the planner to care."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Select, select, text
from sqlalchemy.dialects import postgresql

from app.db.queue.claim import LOST_JOB, NEXT_JOB
from app.db.queue.line import FRONT, RELEASED
from app.db.repositories import tenants
from app.db.session import Database
from app.db.tables import ApiKey, Job, JobEvent
from tests.integration.db import rows

COPIES = """
INSERT INTO jobs (id, tenant_id, kind, status, model, base_model, adapter_name, training_blob_id, config, request,
                  trainable_parameters, optimizer_bytes, lease_expires_at)
SELECT 'ftjob-' || n, 'tnt-' || n % 97 + 1, kind,
       CASE WHEN n % 100 = 0 THEN 'queued' WHEN n % 100 = 1 THEN 'running' ELSE 'succeeded' END,
       model, base_model, adapter_name, training_blob_id, config, request, trainable_parameters, optimizer_bytes,
       CASE WHEN n % 100 = 1 THEN extract(epoch FROM now()) + 30 END
FROM jobs, generate_series(1, 5000) AS n
"""
EVENTS = """
INSERT INTO job_events (id, tenant_id, job_id, level, type, message)
SELECT 'ftevent-' || row_number() OVER (), tenant_id, id, 'info', 'message', 'x' FROM jobs, generate_series(1, 3)
"""
KEYS = """
INSERT INTO api_keys (id, tenant_id, name, hint, sha256)
SELECT 'key-' || n, id, 'ci', 'tml-', md5(n::text) || md5((n + 1)::text) FROM tenants, generate_series(1, 5000) AS n
WHERE tenants.name = 'acme'
"""
ACCOUNTS = """
WITH made AS (INSERT INTO tenants (id, name) SELECT 'tnt-' || n, 'tenant-' || n FROM generate_series(1, 2000) AS n
              RETURNING id)
INSERT INTO queue_accounts (base_model, tenant_id, state, had, in_line_since, arrivals)
SELECT 'smol', id, CASE WHEN right(id, 1) = '7' THEN 'in_line' ELSE 'away' END, length(id), 0, 1 FROM made
"""


@pytest.fixture
def filled(postgres_url: str) -> Iterator[Database]:
    database = Database(postgres_url)
    with database.write() as session:
        rows.add_job(session, tenants.create(session, "acme").id)
        for statement in (ACCOUNTS, COPIES, EVENTS, KEYS, "ANALYZE"):
            session.execute(text(statement.replace("::", "\\:\\:")))
    yield database
    database.dispose()


def indexes_used(database: Database, query: Select[Any], **values: object) -> set[str]:
    sql = str(query.params(**values).compile(dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True}))
    with database.write() as session:
        plan = session.execute(text(f"EXPLAIN (FORMAT JSON) {sql}".replace(":", "\\:"))).scalar_one()
    nodes = [plan[0]["Plan"] if isinstance(plan, list) else json.loads(plan)[0]["Plan"]]
    used = set()
    while nodes:
        node = nodes.pop()
        assert not (node["Node Type"] == "Seq Scan" and node["Relation Name"] not in {"tenants", "daily_tokens"}), sql
        used.add(node.get("Index Name"))
        nodes += node.get("Plans", [])
    return used - {None}


def test_claiming_reads_the_queue_by_its_indexes(filled: Database) -> None:
    of_tenant = {"ix_jobs_queue", "ix_jobs_status_base_model_tenant_id", "pk_daily_tokens", "pk_tenants"}
    assert indexes_used(filled, NEXT_JOB, base=rows.BASE, tenant="tnt-7") == {"ix_jobs_queue"}
    assert indexes_used(filled, LOST_JOB, base=rows.BASE) == {"ix_jobs_status_base_model_tenant_id"}
    assert indexes_used(filled, FRONT, base=rows.BASE, passed=["tnt-7"]) - of_tenant == {"ix_queue_accounts_line"}
    assert indexes_used(filled, RELEASED, base=rows.BASE) - of_tenant == {"ix_queue_accounts_line"}


def test_the_events_of_a_job_come_from_their_index(filled: Database) -> None:
    query = select(JobEvent).where(JobEvent.job_id == "ftjob-7").order_by(JobEvent.id.desc()).limit(20)
    assert indexes_used(filled, query) == {"ix_job_events_job_id_id"}


def test_a_job_is_found_by_its_key(filled: Database) -> None:
    query = select(Job).where(Job.id == "ftjob-7", Job.tenant_id == "tnt-1")
    assert len(indexes_used(filled, query)) == 1


def test_a_key_is_found_by_its_hash(filled: Database) -> None:
    query = select(ApiKey).where(ApiKey.sha256 == "0" * 64, ApiKey.revoked_at.is_(None))
    assert indexes_used(filled, query) == {"uq_api_keys_sha256"}
