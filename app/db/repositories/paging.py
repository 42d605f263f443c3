"""Lists in pages: the rows after a given one, newest or oldest first."""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from sqlalchemy import ColumnElement, Select
from sqlalchemy.orm import InstrumentedAttribute, Session

Order = Literal["asc", "desc"]
Row = TypeVar("Row")


def fetch_page(
    session: Session,
    query: Select[Row],
    key: InstrumentedAttribute[Any],
    *,
    after: str | ColumnElement[Any] | None,
    limit: int,
    order: Order,
) -> tuple[Sequence[Row], bool]:
    """Return at most `limit` rows of `query` beyond `after` in the order of `key`, and whether more follow."""
    if after is not None:
        query = query.where(key > after if order == "asc" else key < after)
    ordered = query.order_by(key.asc() if order == "asc" else key.desc())
    rows: Sequence[Row] = session.scalars(ordered.limit(limit + 1)).all()
    return rows[:limit], len(rows) > limit
