"""Two real workers: requests for an adapter go to the one that holds it, and to the other one when it is killed."""

import pytest
import redis
import torch

from app.bus import names
from app.bus.affinity import name_of
from app.bus.token_streams import WorkerLostError
from app.contracts.inference import DoneEvent
from app.db.repositories import adapters, workers
from app.db.tables import AdapterVersion
from tests.faults.conftest import Deployment, Worker, wait_for
from tests.faults.streams import read, read_first_text, send, stream
from workers.lora.adapter import AdapterWeights
from workers.lora.adapter_file import to_peft

MODULES = [f"model.layers.{layer}.mlp.down_proj" for layer in range(2)]
DONE = DoneEvent(prompt_tokens=3, completion_tokens=3)
HEARTBEAT_SECONDS = "2"
"""A killed worker is believed alive for up to three of them."""


def upload(deployment: Deployment) -> AdapterVersion:
    """Register an adapter."""
    info = deployment.wait_registered()
    tensors = {module: (torch.ones(2, 48), torch.ones(32, 2)) for module in MODULES}
    weights = AdapterWeights(tensors, dict.fromkeys(MODULES, 1.0), alpha=2.0, rank=2, targets=["down_proj"])
    config, content = to_peft(weights, info)
    with deployment.database.write() as session:
        return adapters.add_uploaded_version(
            session, deployment.tenant, name="a", base_model="tiny", weights=content, config=config, metrics={}
        )


def ready(deployment: Deployment, worker: Worker) -> str:
    """Wait until a worker serves, and return its id."""
    worker.wait_for_log("worker ready")
    with deployment.database.read() as session:
        return next(row.id for row, _ in workers.seen(session) if row.id in worker.log())


def answered(deployment: Deployment, request_id: str, version: AdapterVersion) -> None:
    """Send a request and wait for its whole answer."""
    send(deployment.redis_url, stream(request_id, tokens=3, version=version))
    assert read(deployment.redis_url, request_id)[-1] == DONE


def test_requests_follow_their_adapter_and_outlive_its_holder(deployment: Deployment) -> None:
    running = [deployment.start(heartbeat_seconds=HEARTBEAT_SECONDS) for _ in range(2)]
    ids = [ready(deployment, worker) for worker in running]
    version = upload(deployment)
    with redis.Redis.from_url(deployment.redis_url) as bus:

        def holders() -> list[str]:
            version_name = name_of(stream("", tokens=1, version=version).adapter)
            return [worker for worker in ids if bus.sismember(names.held("tiny", worker), version_name)]

        answered(deployment, "first", version)
        wait_for(lambda: len(holders()) == 1, "a holder")
        [holder] = holders()
        for number in range(15):
            answered(deployment, f"req-{number}", version)
        assert holders() == [holder]

        send(deployment.redis_url, stream("cut", tokens=480, n=8, version=version))
        read_first_text(deployment.redis_url, "cut")
        process = running[ids.index(holder)].process
        process.kill()
        process.wait()
        late = [f"late-{number}" for number in range(5)]
        for request_id in late:
            send(deployment.redis_url, stream(request_id, tokens=3, version=version))
        assert bus.llen(names.own_requests("tiny", holder)) == len(late)
        assert [read(deployment.redis_url, request_id)[-1] for request_id in late] == [DONE] * len(late)
        with pytest.raises(WorkerLostError):
            read(deployment.redis_url, "cut")
        assert [worker for worker in holders() if worker != holder] != []
        assert bus.zscore(names.presence("tiny"), holder) is None
