"""Finds the deployment a command is for, and opens its database. Knows nothing of single tables."""

from collections.abc import Iterator
from contextlib import contextmanager

from app.cli.errors import CliError
from app.core.settings import Settings, get_settings
from app.db.session import Database


@contextmanager
def open_database(settings: Settings | None = None) -> Iterator[Database]:
    """Yield the database named by the environment. Raises CliError when an embedded one was never started."""
    settings = settings or get_settings()
    url = settings.resolved_database_url()
    if settings.data_dir and not settings.database_url and not (settings.data_dir / "graft.db").exists():
        raise CliError(
            f"no deployment in {settings.data_dir}: start one with 'graft serve --data-dir {settings.data_dir}', "
            "or run 'graft migrate'"
        )
    database = Database(url)
    try:
        yield database
    finally:
        database.dispose()
