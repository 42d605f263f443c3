"""Where jobs that wait are in the queue, and what they wait for."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.orm import Session

from app.db.queue.limits import LimitReached, limit_reached
from app.db.queue.places import positions
from app.db.repositories import workers
from app.db.tables import Job
from app.services.health import MISSED_HEARTBEATS

Reason = LimitReached | Literal["waiting_for_worker", "no_worker_for_base_model", "paused"]


@dataclass(frozen=True)
class QueuePlace:
    """What a job waits for; `position` is how many claims come before its own, None where that does not decide."""

    position: int | None
    reason: Reason


def queue_places(
    session: Session, tenant_id: str, jobs: Sequence[Job], *, heartbeat_seconds: float
) -> dict[str, QueuePlace]:
    """Return the places of those of the tenant's `jobs` that wait, by id."""
    places = {job.id: QueuePlace(None, "paused") for job in jobs if job.status == "paused"}
    queued: dict[str, list[str]] = defaultdict(list)
    for job in jobs:
        if job.status == "queued":
            queued[job.base_model].append(job.id)
    if not queued:
        return places
    if (limit := limit_reached(session, tenant_id)) is not None:
        return places | {job_id: QueuePlace(None, limit) for ids in queued.values() for job_id in ids}
    hosted = {worker.base_model for worker in workers.alive(session, MISSED_HEARTBEATS * heartbeat_seconds)}
    for base_model, ids in queued.items():
        reason: Reason = "waiting_for_worker" if base_model in hosted else "no_worker_for_base_model"
        claims = positions(session, tenant_id, base_model, ids)
        places |= {job_id: QueuePlace(claims.get(job_id, 0), reason) for job_id in ids}
    return places
