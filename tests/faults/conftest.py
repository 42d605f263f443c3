"""Real worker processes on SQLite and Valkey, with a tiny model, short leases and named fault points."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.contracts.base_models import BaseModelInfo
from app.contracts.training import JobConfig
from app.db.blobs import write_blob
from app.db.repositories import base_models, jobs, tenants
from app.db.session import Database
from app.db.tables import AdapterVersion, Job, JobSnapshot
from tests.faults.jobs import CHATS, config_of
from tests.tiny_model import save_tiny_model

PATIENCE = 60.0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition` holds; fail after a minute."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


class Worker:
    """A worker process and its log."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers.main"], env=environment, stdout=stream, stderr=stream
            )

    def log(self) -> str:
        """Return all it logged so far."""
        return self._log.read_text()

    def wait_for_log(self, text: str) -> None:
        """Wait until a line of the log contains `text`."""
        wait_for(lambda: text in self.log(), f"{text!r} in the log:\n{self.log()[-3000:]}")

    def wait_stopped(self) -> None:
        """Wait until the process was stopped by SIGSTOP."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "SIGSTOP")

    def wait_killed(self) -> None:
        """Wait until the process was killed by SIGKILL."""
        assert self.process.wait(PATIENCE) == -signal.SIGKILL, self.log()

    def terminate(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """End the process if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Deployment:
    """One database, one bus, and the workers a test starts on them."""

    def __init__(self, directory: Path, database_url: str, redis_url: str, model: Path) -> None:
        self.directory = directory
        self.database = Database(database_url)
        self.redis_url = redis_url
        self.workers: list[Worker] = []
        (directory / "graft.toml").write_text(f'[[base_models]]\nid = "tiny"\nsource = "hf:{model}"\n')
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GRAFT_")},
            "GRAFT_DATABASE_URL": database_url,
            "GRAFT_REDIS_URL": redis_url,
            "GRAFT_CONFIG_FILE": str(directory / "graft.toml"),
            "GRAFT_LEASE_SECONDS": "2",
            "GRAFT_HEARTBEAT_SECONDS": "0.2",
            "GRAFT_POLL_SECONDS": "0.2",
            "GRAFT_SNAPSHOT_EVERY_STEPS": "4",
            "GRAFT_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        with self.database.write() as session:
            self.tenant = tenants.create(session, "acme").id

    def start(self, fault: str = "", *, max_attempts: str = "3", heartbeat_seconds: str = "0.2") -> Worker:
        """Start a worker; `fault` arms its fault points."""
        log = self.directory / f"worker-{len(self.workers)}.log"
        environment = self._environment | {
            "GRAFT_FAULT": fault,
            "GRAFT_MAX_ATTEMPTS": max_attempts,
            "GRAFT_HEARTBEAT_SECONDS": heartbeat_seconds,
        }
        worker = Worker(environment, log)
        self.workers.append(worker)
        return worker

    def enqueue(self, config: JobConfig | None = None, *, data: bytes = CHATS, adapter: str = "support") -> str:
        """Queue a fine-tune of the tenant and return its id."""
        with self.database.write() as session:
            blob = write_blob(session, self.tenant, data)
            return jobs.create(
                session, self.tenant, kind="fine_tune", model="tiny", base_model="tiny", adapter_name=adapter,
                training_blob_id=blob.id, config=config or config_of(), request={}, trainable_parameters=0,
                optimizer_bytes=0,
            ).id  # fmt: skip

    def job(self, job_id: str) -> Job:
        """Return the job as committed."""
        with self.database.read() as session:
            return session.get_one(Job, job_id)

    def wait_status(self, job_id: str, status: str) -> Job:
        """Wait until the job is in `status`."""
        wait_for(lambda: self.job(job_id).status == status, f"job {status}; logs:\n{self.logs()}")
        return self.job(job_id)

    def wait_steps(self, job_id: str, steps: int) -> None:
        """Wait until the job reported at least that many steps."""

        def done() -> bool:
            progress = self.job(job_id).progress
            return progress is not None and int(str(progress["step"])) >= steps

        wait_for(done, f"{steps} steps; logs:\n{self.logs()}")

    def versions(self) -> list[AdapterVersion]:
        """Return all published versions."""
        with self.database.read() as session:
            return list(session.query(AdapterVersion).order_by(AdapterVersion.id))

    def snapshots(self, job_id: str) -> list[int]:
        """Return the steps that can be resumed from."""
        with self.database.read() as session:
            return [row.step for row in session.query(JobSnapshot).filter_by(job_id=job_id).order_by(JobSnapshot.step)]

    def messages(self, job_id: str) -> list[str]:
        """Return the job's history, oldest first."""
        with self.database.read() as session:
            rows, more = jobs.events(session, self.tenant, job_id, limit=1000, order="asc")
            assert not more
            return [row.message for row in rows]

    def wait_registered(self) -> BaseModelInfo:
        """Wait until a worker has registered the model, and return what it told."""

        def registered() -> bool:
            with self.database.read() as session:
                return base_models.get(session, "tiny") is not None

        wait_for(registered, f"registration; logs:\n{self.logs()}")
        with self.database.read() as session:
            row = base_models.get(session, "tiny")
            assert row is not None
            return BaseModelInfo.model_validate(row.info)

    def logs(self) -> str:
        """Return the ends of all workers' logs."""
        return "\n".join(worker.log()[-2000:] for worker in self.workers)

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.kill()
        self.database.dispose()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's directory."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def deployment(tmp_path: Path, sqlite_url: str, valkey_url: str, tiny_model: Path) -> Iterator[Deployment]:
    """A deployment without workers, migrated."""
    deployment = Deployment(tmp_path, sqlite_url, valkey_url, tiny_model)
    yield deployment
    deployment.close()
