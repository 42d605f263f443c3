"""A job room in this process: the tiny model, a SQLite database of the test's own, one tenant."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from sqlalchemy import select

from app.contracts.training import JobConfig
from app.db import queue
from app.db.blobs import write_blob
from app.db.queue import ClaimedJob
from app.db.repositories import jobs, tenants
from app.db.session import Database
from app.db.tables import AdapterVersion, Job
from tests.faults.jobs import CHATS, config_of
from tests.tiny_model import save_tiny_model
from workers.loading import LoadedBase, load_base_model
from workers.lora.bank import AdapterBank
from workers.runtime.fault_points import FaultPoints
from workers.runtime.heartbeat import LeaseWatch
from workers.runtime.job_runner import JobRoom, run_job
from workers.training.memory import TrainingMemory
from workers.training.shared_pass import alone

SLOT = 2


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> LoadedBase:
    """The tiny model in float32."""
    directory = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    return load_base_model(f"hf:{directory}", model_id="tiny", device="cpu", dtype="float32", quantization="none")


@dataclass
class Room:
    """A job room and what tests ask of its database."""

    room: JobRoom
    tenant: str

    @property
    def database(self) -> Database:
        """The test's database."""
        return self.room.database

    def enqueue(
        self,
        config: JobConfig | None = None,
        *,
        data: bytes = CHATS,
        retention: bytes | None = None,
        parent: AdapterVersion | None = None,
    ) -> str:
        """Queue a job and return its id."""
        with self.database.write() as session:
            blob = write_blob(session, self.tenant, data)
            kept = retention and write_blob(session, self.tenant, retention)
            return jobs.create(
                session, self.tenant, kind="fine_tune", model="tiny", base_model="tiny", adapter_name="support",
                adapter_id=parent.adapter_id if parent else None, parent_version_id=parent.id if parent else None,
                training_blob_id=blob.id, retention_blob_id=kept.id if kept else None, config=config or config_of(),
                request={}, trainable_parameters=0, optimizer_bytes=0,
            ).id  # fmt: skip

    def claim(self, worker_id: str = "wkr-1", lease_seconds: float = 60) -> ClaimedJob:
        """Claim the next job."""
        job = queue.claim(
            self.database, worker_id=worker_id, base_model="tiny", lease_seconds=lease_seconds, max_attempts=5
        )
        assert isinstance(job, ClaimedJob)
        return job

    def run(self, job: ClaimedJob) -> list[float]:
        """Run a claimed job to its end; return the pauses it asked for."""
        return [pause for pause in self.slices(job, LeaseWatch(job.lease)) if pause is not None]

    def slices(self, job: ClaimedJob, watch: LeaseWatch) -> Iterator[float | None]:
        """Run a claimed job slice by slice, alone on the model."""
        return alone(self.room.model, run_job(self.room, job, watch, SLOT))

    def job(self, job_id: str) -> Job:
        """Return the job as committed."""
        with self.database.read() as session:
            return session.get_one(Job, job_id)

    def versions(self) -> list[AdapterVersion]:
        """Return all versions, oldest first."""
        with self.database.read() as session:
            return list(session.scalars(select(AdapterVersion).order_by(AdapterVersion.version)))

    def messages(self, job_id: str) -> list[str]:
        """Return the job's history, oldest first."""
        with self.database.read() as session:
            return [row.message for row in jobs.events(session, self.tenant, job_id, limit=1000, order="asc")[0]]


@pytest.fixture
def room(base: LoadedBase, sqlite_url: str) -> Iterator[Room]:
    """A room that snapshots every fourth step."""
    database = Database(sqlite_url)
    with database.write() as session:
        tenant = tenants.create(session, "acme").id
    made = JobRoom(
        database, base, AdapterBank(base.model), FaultPoints(), 4, threading.Event(),
        TrainingMemory(base.info, None), 1024,
    )  # fmt: skip
    yield Room(made, tenant)
    database.dispose()
