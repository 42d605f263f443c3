"""Two tenants on one worker: one queues a dozen jobs, then the other queues one, which does not wait for the dozen."""

import time
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import select

from app.db.session import Database
from app.db.tables import Job, QueueAccount
from tests.e2e.conftest import JOB_SECONDS, Server, running_server
from tests.faults.jobs import CHATS
from tests.tiny_model import save_tiny_model

MANY = 12
SIDE_BY_SIDE = 3


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the tiny model that trains three jobs at once, in passes that hold a step of about two of them."""
    folder = tmp_path_factory.mktemp("fairness")
    config = f'[[base_models]]\nid = "tiny"\nsource = "hf:{save_tiny_model(folder / "tiny")}"\ndtype = "float32"\n'
    settings = {"GRAFT_MAX_TRAINING_RUNS": str(SIDE_BY_SIDE), "GRAFT_TOKENS_PER_STEP": "512", "GRAFT_THREADS": "1"}
    with running_server(folder, config, **settings) as server:
        yield server


def queue_jobs(server: Server, tenant: str, count: int) -> list[str]:
    """Queue equal jobs of a new tenant and return their ids."""
    headers = {"Authorization": f"Bearer {server.new_tenant(tenant)}"}
    with httpx.Client(base_url=f"{server.url}/v1", headers=headers, timeout=60.0) as http:
        file = {"file": ("chats.jsonl", CHATS)}
        made = http.post("/files", data={"purpose": "fine-tune"}, files=file).raise_for_status().json()
        epochs = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 10}}}
        body = {"model": "tiny", "training_file": made["id"], "method": epochs, "seed": 7}
        answers = [http.post("/fine_tuning/jobs", json={**body, "adapter": f"{tenant}-{n}"}) for n in range(count)]
        return [str(answer.raise_for_status().json()["id"]) for answer in answers]


def ended(database: Database, ids: list[str]) -> list[Job]:
    """Wait for the jobs and return them."""
    deadline = time.monotonic() + JOB_SECONDS
    while True:
        with database.read() as session:
            found = list(session.scalars(select(Job).where(Job.id.in_(ids))))
        if all(job.status in {"succeeded", "failed"} for job in found):
            return found
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_one_job_does_not_wait_for_another_tenants_many(tiny_server: Server) -> None:
    many = queue_jobs(tiny_server, "many", MANY)
    (one,) = queue_jobs(tiny_server, "one", 1)
    database = Database(f"sqlite:///{tiny_server.data_dir}/graft.db")
    jobs = {job.id: job for job in ended(database, [*many, one])}
    with database.read() as session:
        had = sorted(session.scalars(select(QueueAccount.had)))
    database.dispose()
    assert {job.status for job in jobs.values()} == {"succeeded"}
    assert len({job.trained_tokens for job in jobs.values()}) == 1
    single = jobs[one]
    assert single.started_at is not None
    assert single.finished_at is not None
    theirs = [(jobs[job_id].started_at or 0.0, jobs[job_id].finished_at or 0.0) for job_id in many]
    waited = sum(single.created_at < start < single.started_at for start, _ in theirs)
    between = sum(single.created_at < end < single.finished_at for _, end in theirs)
    later = sum(start > single.finished_at for start, _ in theirs)
    # It is the next to be claimed, and from then on has half of the worker, whose other half two of the many share.
    assert waited <= 1
    assert between <= SIDE_BY_SIDE + 2
    assert later >= MANY // 3
    # Their accounts with the queue: level when the one came, which has had the tokens of one job since.
    assert had[-1] - had[0] >= MANY // 2 * single.trained_tokens
