"""Clients of an empty Valkey server."""

from collections.abc import Iterator

import pytest
import redis

from app.bus.connection import connect


@pytest.fixture
def worker(valkey_url: str) -> Iterator[redis.Redis]:
    """The client of a worker."""
    with connect(valkey_url) as client:
        yield client
