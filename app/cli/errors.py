"""Turns what can go wrong in a command into one line with the next step. Knows nothing of single commands."""

import sqlite3

import redis
from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError, IntegrityError

from app.core.settings import SettingsError


class CliError(Exception):
    """A command cannot go on; the message is one line and names the next step."""


def _database_line(error: DBAPIError) -> str:
    cause = str(error.orig).strip().splitlines()[0] if error.orig else type(error).__name__
    missing_table = "no such table" in cause or ("relation" in cause and "does not exist" in cause)
    if missing_table:
        return f"the database has no Graft tables ({cause}): run 'graft migrate' first"
    if isinstance(error.orig, sqlite3.OperationalError) or "connect" in cause:
        return f"cannot use the database ({cause}): check GRAFT_DATABASE_URL or GRAFT_DATA_DIR"
    return f"the database refused the request: {cause}"


def explain(error: Exception) -> str | None:
    """Return one line for an expected error, or None for a defect that deserves its traceback."""
    if isinstance(error, CliError | SettingsError):
        return str(error)
    if isinstance(error, ValidationError) and error.title == "Settings":
        first = error.errors()[0]
        name = "GRAFT_" + "_".join(str(part) for part in first["loc"]).upper()
        return f"{name}: {first['msg']}: correct the environment variable"
    if isinstance(error, DBAPIError) and not isinstance(error, IntegrityError):
        return _database_line(error)
    if isinstance(error, redis.ConnectionError):
        return f"cannot reach Redis ({error}): check GRAFT_REDIS_URL, or start it with 'graft serve'"
    return None
