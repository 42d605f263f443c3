"""Whether this service can serve: database, migrations, Redis and a worker, each by name."""

from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from app.db.repositories import workers
from app.db.session import Database

MISSED_HEARTBEATS = 3


def readiness(database: Database, client: Redis, *, heartbeat_seconds: float) -> dict[str, str]:
    """Return "ok" or what is wrong for database, migrations, redis and workers."""
    return _database_checks(database, heartbeat_seconds) | {"redis": _redis_check(client)}


def _database_checks(database: Database, heartbeat_seconds: float) -> dict[str, str]:
    from app.db.migrate import is_current  # Alembic is a tenth of the whole start-up time

    try:
        if not is_current(database):
            return {"database": "ok", "migrations": "run 'graft migrate'", "workers": "unknown"}
        with database.read() as session:
            alive = workers.alive(session, MISSED_HEARTBEATS * heartbeat_seconds)
    except SQLAlchemyError:
        return {"database": "unreachable", "migrations": "unknown", "workers": "unknown"}
    return {"database": "ok", "migrations": "ok", "workers": "ok" if alive else "no live worker"}


def _redis_check(client: Redis) -> str:
    try:
        client.ping()
    except RedisError:
        return "unreachable"
    return "ok"
