"""Tenants to test with."""

import pytest

from app.db.repositories import tenants
from app.db.session import Database


@pytest.fixture
def tenant(database: Database) -> str:
    """The id of a tenant."""
    with database.write() as session:
        return tenants.create(session, "acme").id


@pytest.fixture
def other_tenant(database: Database) -> str:
    """The id of another tenant."""
    with database.write() as session:
        return tenants.create(session, "globex").id
