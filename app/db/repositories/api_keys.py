"""API keys. The plaintext exists once, in the answer that creates it; the table holds its SHA-256."""

import hashlib
import hmac
import secrets
from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.core.ids import new_id
from app.db.tables import ApiKey, db_now

PREFIX = "tml-"
USED_RESOLUTION_SECONDS = 60
"""How fresh `last_used_at` is kept: a write per minute and key, not per request."""


def create(session: Session, tenant_id: str, name: str, *, admin: bool = False) -> tuple[ApiKey, str]:
    """Add a key of 256 random bits and return it with its plaintext, which nobody can read again.

    With `admin` it may also see what belongs to the deployment.
    """
    plaintext = PREFIX + secrets.token_urlsafe(32)
    key = ApiKey(
        id=new_id("key"),
        tenant_id=tenant_id,
        name=name,
        hint=plaintext[:10],
        sha256=_digest(plaintext),
        admin=admin,
    )
    session.add(key)
    session.flush()
    return key, plaintext


def find_by_plaintext(session: Session, plaintext: str) -> ApiKey | None:
    """Return the unrevoked key that `plaintext` is, or None. This is how a request learns its tenant."""
    digest = _digest(plaintext)
    key = session.scalar(select(ApiKey).where(ApiKey.sha256 == digest, ApiKey.revoked_at.is_(None)))
    if key is None or not hmac.compare_digest(key.sha256, digest):
        return None
    return key


def mark_used(session: Session, tenant_id: str, key_id: str) -> None:
    """Note that the key was used just now; writes at most once a minute."""
    stale = ApiKey.last_used_at.is_(None) | (ApiKey.last_used_at < db_now() - USED_RESOLUTION_SECONDS)
    mine = (ApiKey.id == key_id, ApiKey.tenant_id == tenant_id)
    session.execute(update(ApiKey).where(*mine, stale).values(last_used_at=db_now()))


def revoke(session: Session, tenant_id: str, key_id: str) -> bool:
    """Revoke the key for good; False when the tenant has no such unrevoked key."""
    mine = (ApiKey.id == key_id, ApiKey.tenant_id == tenant_id, ApiKey.revoked_at.is_(None))
    revoked = update(ApiKey).where(*mine).values(revoked_at=db_now()).returning(ApiKey.id)
    return session.scalar(revoked) is not None


def list(session: Session, tenant_id: str) -> Sequence[ApiKey]:
    """Return the tenant's keys, revoked ones too, oldest first."""
    return session.scalars(select(ApiKey).where(ApiKey.tenant_id == tenant_id).order_by(ApiKey.id)).all()


def _digest(plaintext: str) -> str:
    return hashlib.sha256(plaintext.encode()).hexdigest()
