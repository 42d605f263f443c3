"""Runs the Alembic migrations through their Python API. The only code that creates or drops tables."""

from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

import migrations
from app.db.session import Database
from app.db.tables import Base


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database to `revision`. Safe to call from several processes at once: one does the work."""
    database = Database(url)
    try:
        with database.connection() as connection:
            command.upgrade(_config(connection), revision)
    finally:
        database.dispose()


def downgrade(url: str, revision: str) -> None:
    """Take the database back to `revision`; `base` drops every table with its rows."""
    database = Database(url)
    try:
        with database.connection() as connection:
            command.downgrade(_config(connection), revision)
    finally:
        database.dispose()


def is_current(database: Database) -> bool:
    """Say whether every migration has been applied."""
    with database.read() as session:
        applied = MigrationContext.configure(session.connection()).get_current_heads()
    return set(applied) == set(ScriptDirectory.from_config(_config(None)).get_heads())


def differences(database: Database) -> list[object]:
    """Return what a new migration would have to change for the schema to equal the tables; empty when in step."""
    with database.read() as session:
        context = MigrationContext.configure(session.connection(), opts={"compare_type": True})
        return list(compare_metadata(context, Base.metadata))


def _config(connection: Connection | None) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    return config
