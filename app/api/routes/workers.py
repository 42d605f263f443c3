"""/v1/workers, for the operator's keys; for tenants there is no such route."""

from typing import Any

from fastapi import APIRouter, Depends

from app.api.deps import DatabaseDep, SettingsDep, for_admins
from app.api.schemas.workers import WorkerObject
from app.services.workers import list_workers

router = APIRouter(prefix="/v1/workers", tags=["workers"], dependencies=[Depends(for_admins)])


@router.get("")
def list_all_workers(database: DatabaseDep, settings: SettingsDep) -> dict[str, Any]:
    """List the workers that spoke within the last day: what each serves, how full it is, and what it holds."""
    with database.read() as session:
        seen = list_workers(session, lease_seconds=settings.lease_seconds)
        data = [WorkerObject.of(worker) for worker in seen]
    return {"object": "list", "data": data, "has_more": False}
