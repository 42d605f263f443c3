"""Liveness, readiness, and what importing the application costs."""

import subprocess
import sys
from typing import Any

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs


def test_readiness_names_what_is_missing(api: Any) -> None:
    answer = api.http.get("/readyz")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert answer.json()["checks"] == {
        "database": "ok",
        "migrations": "ok",
        "workers": "no live worker",
        "redis": "ok",
    }
    assert answer.json()["error"]["code"] == "not_ready"
    assert api.http.get("/healthz").json() == {"status": "ok"}


def test_readiness_with_a_worker(api: Any, worker: Any) -> None:
    answer = api.http.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")


def test_readiness_without_redis(api: Any, worker: Any) -> None:
    api.http.app.state.resources.redis.connection_pool.connection_kwargs["port"] = 1
    assert api.http.get("/readyz").json()["checks"]["redis"] == "unreachable"


def test_every_answer_carries_a_request_id(api: Any) -> None:
    assert api.http.get("/healthz", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert api.http.get("/healthz", headers={"x-request-id": "a b"}).headers["x-request-id"].startswith("req-")


def test_a_defect_is_answered_and_logged_under_its_requests_id(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("app.api.routes.models.list_models", broken)
    with capture_logs(processors=[merge_contextvars]) as logs:
        answer = api.send("GET", "/v1/models", headers={"x-request-id": "mine-2"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine-2")
    assert answer.json()["error"] == {
        "message": "The service failed to handle this request",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    [failure] = [line for line in logs if line["event"] == "request failed"]
    assert (failure["request_id"], str(failure["exc_info"])) == ("mine-2", "a defect")


def test_the_application_imports_no_torch() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import app.main; "
        "print(f'{time.perf_counter() - start:.2f} s'); "
        "sys.exit(any(m.partition('.')[0] in ('torch', 'workers') for m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    sys.stdout.write(f"importing app.main took {done.stdout}")
    assert done.returncode == 0, done.stderr
