"""How a merge ends well: its staged output becomes a file of the tenant, in the transaction that ends the job."""

from app.contracts.merge import MergeResult
from app.db.queue.finish import end
from app.db.queue.lease import Lease, fence
from app.db.queue.staging import StagedBytes, seal
from app.db.repositories import files
from app.db.repositories.jobs import NewEvent, add_event
from app.db.session import Database
from app.db.tables import File

PURPOSE = "merge-output"


def finish_merged(db: Database, lease: Lease, output: StagedBytes, filename: str) -> File:
    """End the job well and make its output a file of the tenant, all or nothing. Raises StaleLeaseError."""
    with db.write() as session:
        fence(session, lease)
        blob = seal(session, lease.tenant_id, output)
        file = files.create(session, lease.tenant_id, blob=blob, filename=filename, purpose=PURPOSE, examples=0)
        result = MergeResult(file=file.id, filename=filename, bytes=output.bytes, sha256=output.sha256)
        end(session, lease, "succeeded", result=result.model_dump())
        message = f"Job succeeded: {file.id} holds {filename}, {output.bytes} bytes"
        add_event(session, lease.tenant_id, lease.job_id, NewEvent(message))
        session.refresh(file)
        return file
