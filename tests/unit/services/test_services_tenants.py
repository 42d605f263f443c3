"""Who is calling, also while somebody else's write takes long."""

from sqlalchemy import select

from app.db.repositories import api_keys, tenants
from app.db.session import Database
from app.db.tables import ApiKey
from app.services.tenants import Caller, authenticate


def test_a_request_does_not_wait_for_another_tenants_upload(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with database.write() as session:
        tenant_id = tenants.create(session, "acme").id
        _, plaintext = api_keys.create(session, tenant_id, "first")

    def last_used_at() -> float | None:
        with database.read() as session:
            return session.scalar(select(ApiKey.last_used_at))

    with database.write():
        assert authenticate(database, plaintext) == Caller(tenant_id, admin=False)
    assert last_used_at() is None
    assert authenticate(database, plaintext) == Caller(tenant_id, admin=False)
    assert last_used_at() is not None
    database.dispose()
