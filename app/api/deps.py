"""What endpoints are given: settings, database, Redis, and the tenant that the middleware recognised."""

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Header, Path, Query, Request
from fastapi.security import HTTPBearer
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from starlette.exceptions import HTTPException

from app.core.settings import Settings
from app.db.session import Database


@dataclass(frozen=True)
class Resources:
    """The connections of one application, opened at start-up and closed at its end."""

    settings: Settings
    database: Database
    redis: Redis
    async_redis: AsyncRedis


async def resources(request: Request) -> Resources:
    """Return the application's connections."""
    return cast(Resources, request.app.state.resources)


ResourcesDep = Annotated[Resources, Depends(resources)]


async def _settings(held: ResourcesDep) -> Settings:
    return held.settings


async def _database(held: ResourcesDep) -> Database:
    return held.database


async def _redis(held: ResourcesDep) -> Redis:
    return held.redis


async def _async_redis(held: ResourcesDep) -> AsyncRedis:
    return held.async_redis


async def _tenant_id(request: Request) -> str:
    return cast(str, request.state.tenant_id)


async def for_admins(request: Request) -> None:
    """Let admins' keys pass; for the others the route does not exist."""
    if not request.state.admin:
        raise HTTPException(404)


bearer = HTTPBearer(auto_error=False, description="A key that starts with `tml-`; `X-API-Key` works too.")
"""Only documents the key: the middleware has judged it before any dependency runs."""

SettingsDep = Annotated[Settings, Depends(_settings)]
DatabaseDep = Annotated[Database, Depends(_database)]
RedisDep = Annotated[Redis, Depends(_redis)]
AsyncRedisDep = Annotated[AsyncRedis, Depends(_async_redis)]
TenantDep = Annotated[str, Depends(_tenant_id)]

ResourceId = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
VersionNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]
After = Annotated[str | None, Query(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="the last id of the page before")]
Limit = Annotated[int, Query(ge=1, le=100)]
IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=255, pattern=r"^[\x20-\x7e]+$")]
