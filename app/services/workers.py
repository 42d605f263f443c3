"""The deployment's workers as the operator sees them: what each told last, and whether it is still there."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.db.repositories import workers
from app.db.tables import WorkerRow


@dataclass(frozen=True)
class SeenWorker:
    """A worker's row, and for how many seconds it has been silent by the database's clock."""

    row: WorkerRow
    silent_seconds: float
    gone: bool


def list_workers(session: Session, *, lease_seconds: float) -> Sequence[SeenWorker]:
    """Return the workers that spoke within a day; who was silent for longer than a lease is gone."""
    return [SeenWorker(row, silent, silent > lease_seconds) for row, silent in workers.seen(session)]
