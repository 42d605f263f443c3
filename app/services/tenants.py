"""Who is calling: a key is matched with its tenant, and nothing is told about why it was refused."""

import time
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy.exc import OperationalError

from app.core.errors import AuthenticationError
from app.db.repositories import api_keys
from app.db.session import Database

NOTE_SECONDS = 0.05
"""How long noting a key's use may wait for SQLite's one writer."""


@dataclass(frozen=True)
class Caller:
    """The tenant that a key is of, and whether it may also see what belongs to the deployment."""

    tenant_id: str
    admin: bool


def authenticate(database: Database, key: str | None) -> Caller:
    """Return who calls. Raises AuthenticationError for no key, an unknown one and a revoked one."""
    if key is None:
        raise AuthenticationError(
            "No API key: send 'Authorization: Bearer tml-...' or 'X-API-Key: tml-...'", code="invalid_api_key"
        )
    with database.read() as session:
        found = api_keys.find_by_plaintext(session, key)
    if found is None:
        raise AuthenticationError("Unknown or revoked API key", code="invalid_api_key")
    if time.time() - (found.last_used_at or 0) > api_keys.USED_RESOLUTION_SECONDS:
        # A request must not wait behind another tenant's upload for this: the next one will note it.
        with suppress(OperationalError), database.write(wait_seconds=NOTE_SECONDS) as session:
            api_keys.mark_used(session, found.tenant_id, found.id)
    return Caller(found.tenant_id, found.admin)
