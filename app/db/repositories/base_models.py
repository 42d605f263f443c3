"""Base models as workers registered them. They belong to the deployment, so no function takes a tenant."""

import hashlib
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.contracts.base_models import BaseModelInfo
from app.db import dialects
from app.db.session import dump_json
from app.db.tables import BaseModelRow

MAX_PARSED = 32
_parsed: dict[str, BaseModelInfo] = {}
"""By the content's own hash, so that no entry can be out of date."""


def upsert(session: Session, info: BaseModelInfo) -> None:
    """Register a base model, or renew what is known of it."""
    document = info.model_dump(mode="json")
    values = {"info": document, "sha256": hashlib.sha256(dump_json(document).encode()).hexdigest()}
    statement = dialects.insert(session, BaseModelRow).values(id=info.id, **values)
    session.execute(statement.on_conflict_do_update(index_elements=[BaseModelRow.id], set_=values))


def get(session: Session, base_model: str) -> BaseModelRow | None:
    """Return the base model's row, or None; `info_of` reads what it holds."""
    return session.scalar(select(BaseModelRow).where(BaseModelRow.id == base_model))


def list(session: Session) -> Sequence[BaseModelRow]:
    """Return all base models by id."""
    return session.scalars(select(BaseModelRow).order_by(BaseModelRow.id)).all()


def info_of(row: BaseModelRow) -> BaseModelInfo:
    """Return what a row says of its base model. A content is read and parsed once in a process; its session is open."""
    known = _parsed.get(row.sha256)
    if known is None:
        known = BaseModelInfo.model_validate(row.info)
        if len(_parsed) >= MAX_PARSED:
            _parsed.clear()
        _parsed[row.sha256] = known
    return known
