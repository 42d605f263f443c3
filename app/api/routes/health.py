"""Liveness and readiness; both answer without a key."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from app.api.deps import DatabaseDep, RedisDep, SettingsDep
from app.api.errors import RETRY_SECONDS, error_body
from app.core.errors import UnavailableError
from app.services.health import readiness

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(database: DatabaseDep, redis: RedisDep, settings: SettingsDep) -> JSONResponse:
    """Say whether database, migrations, Redis and a worker are there; 503 names what is not."""
    checks = readiness(database, redis, heartbeat_seconds=settings.heartbeat_seconds)
    failing = [f"{name}: {state}" for name, state in checks.items() if state != "ok"]
    if not failing:
        return JSONResponse({"status": "ok", "checks": checks})
    refusal = UnavailableError("; ".join(failing), code="not_ready")
    content: dict[str, Any] = {"status": "unavailable", "checks": checks, **error_body(refusal)}
    return JSONResponse(content, status_code=refusal.status, headers={"Retry-After": str(RETRY_SECONDS)})
