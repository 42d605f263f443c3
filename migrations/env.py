"""Alembic's entry: runs the migrations on the connection it is given, in that connection's one transaction."""

from alembic import context
from sqlalchemy import Connection, text

from app.db.tables import Base

MIGRATION_LOCK = 4_713_320_921


def run(connection: Connection) -> None:
    """Apply the migrations. On PostgreSQL one process at a time, giving up soon rather than blocking live traffic."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
        connection.execute(text("SET LOCAL lock_timeout = '10s'"))
    context.configure(connection=connection, target_metadata=Base.metadata, compare_type=True, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])
