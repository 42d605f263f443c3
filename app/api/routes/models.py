"""/v1/models."""

from typing import Any

from fastapi import APIRouter

from app.api.deps import DatabaseDep, TenantDep
from app.api.schemas.models import ModelObject
from app.services.model_list import list_models
from app.services.model_names import resolve_model

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("")
def list_all_models(database: DatabaseDep, tenant_id: TenantDep) -> dict[str, Any]:
    """List the hosted base models and the tenant's adapters."""
    with database.read() as session:
        models = list_models(session, tenant_id)
    data = [ModelObject.of(model, model.name) for model in models]
    return {"object": "list", "data": data, "has_more": False}


@router.get("/{name:path}")
def retrieve_model(name: str, database: DatabaseDep, tenant_id: TenantDep) -> ModelObject:
    """Return what a model name means; `ft:` names and `name@3` work too."""
    with database.read() as session:
        return ModelObject.of(resolve_model(session, tenant_id, name), name)
