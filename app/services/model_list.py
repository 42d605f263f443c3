"""Models a tenant can name: the hosted bases and its own adapters at their active version."""

from sqlalchemy.orm import Session

from app.db.repositories import adapters, base_models
from app.services.model_names import ResolvedModel, resolve_model

PAGE = 100


def list_models(session: Session, tenant_id: str) -> list[ResolvedModel]:
    """Return bases first, then adapters, newest first. The list is not paged, as OpenAI's is not."""
    names = [row.id for row in base_models.list(session)]
    after, has_more = None, True
    while has_more:
        rows, has_more = adapters.list(session, tenant_id, after=after, limit=PAGE)
        names += [row.name for row in rows if row.active_version is not None]
        after = rows[-1].id if rows else None
    return [resolve_model(session, tenant_id, name) for name in names]
