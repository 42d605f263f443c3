"""`graft migrate`: brings the database's tables up to date. Safe to run again, and from several machines at once."""

from typing import Annotated

import typer

from app.cli.errors import CliError
from app.core.settings import get_settings
from app.db.migrate import differences, upgrade
from app.db.session import Database


def migrate(
    check: Annotated[bool, typer.Option("--check", help="Then fail if the tables differ from the code's.")] = False,
) -> None:
    """Bring the database up to date."""
    settings = get_settings()
    if settings.data_dir and not settings.database_url:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    url = settings.resolved_database_url()
    upgrade(url)
    if check:
        database = Database(url)
        try:
            found = differences(database)
        finally:
            database.dispose()
        if found:
            raise CliError(f"migrations and tables differ in {found}: write a migration for it")
    typer.echo("The database is up to date.")
