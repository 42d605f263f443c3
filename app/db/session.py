"""Sessions on PostgreSQL or SQLite. Knows connections and transactions; knows no table and no rule of the service.

SQLite serialises writers: a write begins with BEGIN IMMEDIATE, so it waits its turn instead of failing halfway with
"database is locked", from whichever process it comes. Reads see one snapshot and cannot write, on both databases.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, func, select
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

LOCK_WAIT_SECONDS = 60
BEGIN_OPTION = "graft_sqlite_begin"
WAIT_OPTION = "graft_sqlite_wait"


class Database:
    """A pool of connections. Make one per process, after any fork; safe to share between threads."""

    def __init__(self, url: str) -> None:
        """Open a pool for a SQLAlchemy URL: `sqlite:///PATH` or `postgresql://…` (psycopg)."""
        self._engine = make_engine(url)
        self._reader = self._engine
        if self.dialect == "postgresql":
            snapshot = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
            self._reader = self._engine.execution_options(**snapshot)
        self._writer = self._engine.execution_options(**{BEGIN_OPTION: "IMMEDIATE"})

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a session that sees the rows committed before its first query, and writes nothing."""
        with Session(self._reader, expire_on_commit=False, autoflush=False) as session:
            yield session

    @contextmanager
    def write(self, *, wait_seconds: float = LOCK_WAIT_SECONDS) -> Iterator[Session]:
        """Yield a session whose work is committed at the end, or rolled back whole when an exception leaves it.

        `wait_seconds` bounds the wait for SQLite's write lock; OperationalError says that it was in vain.
        """
        writer = self._writer.execution_options(**{WAIT_OPTION: wait_seconds})
        with Session(writer, expire_on_commit=False) as session, session.begin():
            session.connection()  # takes SQLite's write lock before the first read
            yield session

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Yield a write connection in a transaction, for migrations."""
        with self._writer.begin() as connection:
            yield connection

    def dispose(self) -> None:
        """Close all pooled connections."""
        self._engine.dispose()


def make_engine(url: str) -> Engine:
    """Return an engine with this project's transaction rules. Its errors do not show parameters, which are data."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = create_engine(
            parsed,
            connect_args={"timeout": LOCK_WAIT_SECONDS},
            hide_parameters=True,
            json_serializer=dump_json,
            pool_size=10,
            max_overflow=40,
            pool_timeout=60,
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if parsed.get_backend_name() == "postgresql":
        return create_engine(
            parsed,
            hide_parameters=True,
            json_serializer=dump_json,
            pool_pre_ping=True,
            pool_size=10,
            max_overflow=20,
            pool_timeout=60,
        )
    raise ValueError(f"unsupported database {parsed.get_backend_name()!r}: expected sqlite or postgresql")


def lock_name(session: Session, *parts: str) -> None:
    """Hold the lock called `parts` until the transaction ends. SQLite needs none: its writers already take turns."""
    if session.get_bind().dialect.name == "postgresql":
        digest = hashlib.sha256("\0".join(parts).encode()).digest()
        session.execute(select(func.pg_advisory_xact_lock(int.from_bytes(digest[:8], signed=True))))


def dump_json(value: object) -> str:
    """Return JSON for a column. A number that is not finite becomes null: JSON, and so PostgreSQL, has no NaN."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions of its own
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    mode, wait_seconds = options.get(BEGIN_OPTION), options.get(WAIT_OPTION, LOCK_WAIT_SECONDS)
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(1000 * wait_seconds)}").close()
    connection.exec_driver_sql(f"PRAGMA query_only = {'OFF' if mode else 'ON'}")
    connection.exec_driver_sql(f"BEGIN {mode or 'DEFERRED'}")
