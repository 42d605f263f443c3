"""Idempotency keys: what a POST with a key created, kept in the very transaction that created it."""

import hashlib

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.session import lock_name
from app.db.tables import IdempotencyKey


class IdempotencyConflictError(Exception):
    """The key was used before with another request body."""


def request_sha256(body: bytes) -> str:
    """Return the hash by which two request bodies are compared."""
    return hashlib.sha256(body).hexdigest()


def find(session: Session, tenant_id: str, *, route: str, key: str, request_sha256: str) -> str | None:
    """Return the id of the job that this key made, or None when the caller is the first.

    Call it in the write transaction that will `record` the key: a twin waits here until that transaction ends.
    Raises IdempotencyConflictError when the key came with another body.
    """
    lock_name(session, "idempotency", tenant_id, route, key)
    row = session.scalar(
        select(IdempotencyKey).where(
            IdempotencyKey.tenant_id == tenant_id, IdempotencyKey.route == route, IdempotencyKey.key == key
        )
    )
    if row is None:
        return None
    if row.request_sha256 != request_sha256:
        raise IdempotencyConflictError(f"idempotency key {key!r} was used before with another request body")
    return row.job_id


def record(session: Session, tenant_id: str, *, route: str, key: str, request_sha256: str, job_id: str) -> None:
    """Remember that the key made this job."""
    values = {"tenant_id": tenant_id, "route": route, "key": key, "request_sha256": request_sha256, "job_id": job_id}
    session.add(IdempotencyKey(**values))
    session.flush()
