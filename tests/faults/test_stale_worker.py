"""A worker that slept past its lease: its finish is refused, and it is of use again."""

import signal

from tests.faults.conftest import Deployment


def test_a_worker_stopped_past_its_lease_publishes_nothing(deployment: Deployment) -> None:
    job_id = deployment.enqueue()
    sleeper = deployment.start("publish.before:stop")
    sleeper.wait_stopped()
    other = deployment.start()
    job = deployment.wait_status(job_id, "succeeded")
    (version,) = deployment.versions()
    assert (job.lease_token, job.attempts, job.result_version_id) == (2, 2, version.id)
    assert other.terminate() == 0

    sleeper.process.send_signal(signal.SIGCONT)
    sleeper.wait_for_log("lease lost, the work is dropped")
    after = deployment.job(job_id)
    assert [v.id for v in deployment.versions()] == [version.id]
    assert (after.status, after.result, after.finished_at) == ("succeeded", job.result, job.finished_at)

    next_job = deployment.enqueue(adapter="next")
    deployment.wait_status(next_job, "succeeded")
    assert deployment.job(next_job).attempts == 1
    assert sleeper.terminate() == 0
