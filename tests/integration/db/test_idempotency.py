"""Idempotency keys: the key lives and dies with the job it made."""

import threading

import pytest
from sqlalchemy import func, select

from app.db.repositories import idempotency
from app.db.repositories.idempotency import IdempotencyConflictError, request_sha256
from app.db.session import Database
from app.db.tables import IdempotencyKey, Job
from tests.integration.db import rows


def post(database: Database, tenant: str, body: bytes = b"{}", key: str = "key", route: str = "jobs") -> str:
    """What the service does for a POST with a key."""
    sha256 = request_sha256(body)
    with database.write() as session:
        known = idempotency.find(session, tenant, route=route, key=key, request_sha256=sha256)
        if known is not None:
            return known
        job_id = rows.add_job(session, tenant).id
        idempotency.record(session, tenant, route=route, key=key, request_sha256=sha256, job_id=job_id)
        return job_id


def count(database: Database, table: type) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_the_same_body_gets_the_same_job_and_another_body_is_refused(database: Database, tenant: str) -> None:
    first = post(database, tenant)
    assert post(database, tenant) == first
    before = rows.dump(database)
    with pytest.raises(IdempotencyConflictError, match="'key' was used before with another request body"):
        post(database, tenant, body=b'{"seed": 1}')
    assert rows.dump(database) == before


def test_keys_are_apart_by_tenant_and_route(database: Database, tenant: str, other_tenant: str) -> None:
    made = {post(database, owner, route=route) for owner in (tenant, other_tenant) for route in ("jobs", "adapt")}
    assert len(made) == 4


def test_fifty_twins_make_one_job(database: Database, tenant: str) -> None:
    barrier = threading.Barrier(50)
    answers: list[str] = []

    def twin() -> None:
        barrier.wait()
        answers.append(post(database, tenant))

    threads = [threading.Thread(target=twin) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 50
    assert len(set(answers)) == 1
    assert (count(database, Job), count(database, IdempotencyKey)) == (1, 1)


def test_a_request_that_fails_leaves_its_key_free(database: Database, tenant: str) -> None:
    def fail_after_recording() -> None:
        with database.write() as session:
            job_id = rows.add_job(session, tenant).id
            idempotency.record(session, tenant, route="jobs", key="key", request_sha256="0" * 64, job_id=job_id)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_after_recording()
    assert (count(database, Job), count(database, IdempotencyKey)) == (0, 0)
    post(database, tenant, body=b"another body")
    assert (count(database, Job), count(database, IdempotencyKey)) == (1, 1)
