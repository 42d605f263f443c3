"""Jobs that wait, over HTTP: which of them comes next, what they wait for, and pausing them."""

from typing import Any

from app.db import queue
from tests.fake_worker import FakeWorker
from tests.tiny_base import BASE, tiny_base


def adapt(api: Any, *, headers: dict[str, str] | None = None, **body: Any) -> Any:
    """Queue an adapt and do not wait for it."""
    json = {"model": BASE, "text": "A fact.", "wait": 0} | body
    return api.send("POST", "/v1/adapt", json=json, headers=headers or {})


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


def post(api: Any, job_id: str, verb: str) -> Any:
    """Cancel, pause or resume a job."""
    return api.send("POST", f"/v1/fine_tuning/jobs/{job_id}/{verb}")


def test_a_running_job_is_paused_when_its_worker_gives_it_back(api: Any) -> None:
    job_id = adapt(api).json()["id"]
    job = queue.claim(api.database, worker_id="wkr-1", base_model=BASE, lease_seconds=60, max_attempts=3)
    assert job is not None
    assert post(api, job_id, "pause").json()["status"] == "running"
    queue.give_back(api.database, job.lease)
    assert api.send("GET", f"/v1/fine_tuning/jobs/{job_id}").json()["status"] == "paused"
    assert post(api, job_id, "resume").json()["status"] == "queued"
    assert claimed(api) == job_id


def test_what_has_ended_or_is_ending_is_neither_paused_nor_resumed(api: Any) -> None:
    cancelled, ending = adapt(api, priority="low").json()["id"], adapt(api).json()["id"]
    post(api, cancelled, "cancel")
    assert claimed(api) == ending
    post(api, ending, "cancel")
    for verb in ("pause", "resume"):
        for job_id, status, code in ((cancelled, 400, "job_ended"), (ending, 409, "job_is_being_cancelled")):
            answer = post(api, job_id, verb)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert api.send("POST", f"/v1/fine_tuning/jobs/{ending}/{verb}", key=api.other_key).status_code == 404


def test_a_paused_adapt_answers_202_and_is_cancelled_at_once(api: Any) -> None:
    key = {"Idempotency-Key": "once"}
    first = adapt(api, headers=key).json()
    post(api, first["id"], "pause")
    again = adapt(api, headers=key)
    assert (again.status_code, again.json()["id"], again.json()["status"]) == (202, first["id"], "paused")
    assert post(api, first["id"], "cancel").json()["status"] == "cancelled"


def test_paused_jobs_count_as_queued_ones(api: Any) -> None:
    api.settings.max_queued_jobs = 1
    post(api, adapt(api).json()["id"], "pause")
    refused = adapt(api)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_queued_jobs")
    assert refused.headers["Retry-After"] == "30"


def test_a_waiting_job_says_where_it_is_and_why(api: Any) -> None:
    first, second = adapt(api).json(), adapt(api).json()
    assert first["queue"] == {"position": 0, "reason": "no_worker_for_base_model"}
    assert second["queue"] == {"position": 1, "reason": "no_worker_for_base_model"}
    with FakeWorker(api.settings.resolved_database_url(), api.settings.resolved_redis_url(), tiny_base()):
        third = adapt(api, priority="high").json()
    assert third["queue"] == {"position": 0, "reason": "waiting_for_worker"}
    assert post(api, first["id"], "pause").json()["queue"] == {"position": None, "reason": "paused"}
    assert claimed(api) == third["id"]
    assert api.send("GET", f"/v1/fine_tuning/jobs/{third['id']}").json()["queue"] is None
    shown = {job["id"]: job["queue"] for job in api.send("GET", "/v1/fine_tuning/jobs").json()["data"]}
    assert shown == {
        first["id"]: {"position": None, "reason": "paused"},
        second["id"]: {"position": 0, "reason": "waiting_for_worker"},
        third["id"]: None,
    }
    assert post(api, first["id"], "cancel").json()["queue"] is None
