"""Workers as they announce themselves. They serve every tenant, so no function takes one."""

from collections.abc import Sequence

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from app.contracts.workers import WorkerState
from app.db import dialects
from app.db.tables import WorkerRow, db_now

FORGOTTEN_SECONDS = 86400
"""For how long a silent worker is still told of."""


def register(session: Session, *, worker_id: str, base_model: str, device: str) -> None:
    """Note that a worker for a registered base model has started; those long silent are struck."""
    session.execute(delete(WorkerRow).where(WorkerRow.heartbeat_at < db_now() - FORGOTTEN_SECONDS))
    values = {"base_model": base_model, "device": device, "started_at": db_now(), "heartbeat_at": db_now()}
    statement = dialects.insert(session, WorkerRow).values(id=worker_id, **values)
    session.execute(statement.on_conflict_do_update(index_elements=[WorkerRow.id], set_=values))


def heartbeat(session: Session, worker_id: str, state: WorkerState) -> None:
    """Note that the worker lives, by the database's clock, and what it tells."""
    values = {"heartbeat_at": db_now(), **state.model_dump()}
    session.execute(update(WorkerRow).where(WorkerRow.id == worker_id).values(values))


def alive(session: Session, within_seconds: float) -> Sequence[WorkerRow]:
    """Return the workers whose last heartbeat is at most `within_seconds` old."""
    recent = WorkerRow.heartbeat_at >= db_now() - within_seconds
    return session.scalars(select(WorkerRow).where(recent).order_by(WorkerRow.id)).all()


def seen(session: Session) -> Sequence[tuple[WorkerRow, float]]:
    """Return the workers that spoke within a day, oldest first, each with the seconds since then."""
    silent = db_now() - WorkerRow.heartbeat_at
    chosen = select(WorkerRow, silent).where(WorkerRow.heartbeat_at >= db_now() - FORGOTTEN_SECONDS)
    return [(row, seconds) for row, seconds in session.execute(chosen.order_by(WorkerRow.started_at, WorkerRow.id))]


def forget_all(session: Session) -> None:
    """Strike every worker, for a caller who knows that none is running; a living one would register again at start."""
    session.execute(delete(WorkerRow))
