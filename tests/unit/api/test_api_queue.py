"""Jobs that wait, over HTTP: which of them comes next."""

from typing import Any

from app.db import queue
from tests.tiny_base import BASE


def adapt(api: Any, **body: Any) -> Any:
    """Queue an adapt and do not wait for it."""
    return api.send("POST", "/v1/adapt", json={"model": BASE, "text": "A fact.", "wait": 0} | body)


def claimed(api: Any) -> str:
    """Claim the next job as a worker would; return its id."""
    job = queue.claim(api.database, worker_id="wkr-1", base_model=BASE, lease_seconds=60, max_attempts=3)
    assert job is not None
    return job.lease.job_id


def test_priority_decides_among_jobs_of_both_kinds(api: Any) -> None:
    normal = adapt(api).json()
    low = adapt(api, priority="low").json()
    body = {"model": BASE, "training_file": api.upload(), "priority": "high"}
    high = api.send("POST", "/v1/fine_tuning/jobs", json=body).json()
    assert [job["priority"] for job in (normal, low, high)] == ["normal", "low", "high"]
    assert [claimed(api) for _ in range(3)] == [high["id"], normal["id"], low["id"]]


def test_an_unknown_priority_is_refused_by_name(api: Any) -> None:
    answer = adapt(api, priority="urgent")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "priority", "invalid_value")
    assert "'high', 'normal' or 'low'" in error["message"]
