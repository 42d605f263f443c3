"""Models a tenant can name: the hosted bases and its own adapters at their active version."""

from collections.abc import Iterator

from sqlalchemy.orm import Session

from app.db.repositories import adapters, base_models
from app.db.tables import Adapter
from app.services.model_names import ResolvedModel

PAGE = 100


def list_models(session: Session, tenant_id: str) -> list[ResolvedModel]:
    """Return bases first, then adapters, newest first. The list is not paged, as OpenAI's is not."""
    rows = base_models.list(session)
    bases = {row.id: ResolvedModel(row.id, base_models.info_of(row), row.created_at) for row in rows}
    models = list(bases.values())
    for adapter in _all_adapters(session, tenant_id):
        version = adapter.active_version and adapters.get_version(
            session, tenant_id, adapter.id, adapter.active_version
        )
        if version and adapter.base_model in bases:
            info = bases[adapter.base_model].info
            models.append(ResolvedModel(adapter.name, info, version.created_at, adapter, version))
    return models


def _all_adapters(session: Session, tenant_id: str) -> Iterator[Adapter]:
    after, has_more = None, True
    while has_more:
        rows, has_more = adapters.list(session, tenant_id, after=after, limit=PAGE)
        yield from rows
        after = rows[-1].id if rows else None
