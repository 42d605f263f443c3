"""The one statement that both databases have and SQLAlchemy's core lacks: INSERT … ON CONFLICT."""

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.db.tables import Base


def insert(session: Session, table: type[Base]) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT into `table` that offers `on_conflict_do_nothing` and `on_conflict_do_update`."""
    if session.get_bind().dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
