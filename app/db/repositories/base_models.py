"""Base models as workers registered them. They belong to the deployment, so no function takes a tenant."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.contracts.base_models import BaseModelInfo
from app.db import dialects
from app.db.tables import BaseModelRow


def upsert(session: Session, info: BaseModelInfo) -> None:
    """Register a base model, or renew what is known of it."""
    document = info.model_dump(mode="json")
    statement = dialects.insert(session, BaseModelRow).values(id=info.id, info=document)
    session.execute(statement.on_conflict_do_update(index_elements=[BaseModelRow.id], set_={"info": document}))


def get(session: Session, base_model: str) -> BaseModelRow | None:
    """Return the base model's row, or None; its `info` is a BaseModelInfo as JSON."""
    return session.scalar(select(BaseModelRow).where(BaseModelRow.id == base_model))


def list(session: Session) -> Sequence[BaseModelRow]:
    """Return all base models by id."""
    return session.scalars(select(BaseModelRow).order_by(BaseModelRow.id)).all()
