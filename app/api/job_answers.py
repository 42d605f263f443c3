"""Job rows in their wire form, with the version each made and its place in the queue."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from app.api.schemas.jobs import JobObject
from app.core.settings import Settings
from app.db.tables import Job
from app.services.jobs import published_version
from app.services.queue_places import queue_places


def job_objects(session: Session, settings: Settings, tenant_id: str, rows: Sequence[Job]) -> list[JobObject]:
    """Return the wire form of a tenant's jobs."""
    places = queue_places(session, tenant_id, rows, heartbeat_seconds=settings.heartbeat_seconds)
    return [JobObject.of(row, published_version(session, row), places.get(row.id)) for row in rows]


def job_object(session: Session, settings: Settings, job: Job) -> JobObject:
    """Return the wire form of a job."""
    [shaped] = job_objects(session, settings, job.tenant_id, [job])
    return shaped
