"""Jobs once they are queued: what cancelling leaves behind."""

from sqlalchemy import func, select

from app.db import queue
from app.db.repositories import tenants
from app.db.session import Database
from app.db.tables import Blob, BlobChunk, JobSnapshot
from app.services.jobs import cancel_job
from tests.integration.db import rows


def test_cancelling_a_job_that_was_given_back_drops_its_resume_points(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with database.write() as session:
        tenant_id = tenants.create(session, "acme").id
        job = rows.add_job(session, tenant_id)
    lease = rows.claim_one(database).lease
    queue.save_snapshot(database, lease, 1, b"weights and moments", {})
    queue.give_back(database, lease)
    with database.write() as session:
        assert cancel_job(session, tenant_id, job.id).status == "cancelled"
    with database.read() as session:
        left = [session.scalar(select(func.count()).select_from(table)) for table in (JobSnapshot, Blob, BlobChunk)]
    assert left == [0, 1, 1]
    database.dispose()
