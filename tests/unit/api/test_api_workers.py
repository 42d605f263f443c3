"""The operator's view of the workers; tenants do not see that there is one."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import update

from app.contracts.workers import ServingCounts, WorkerState
from app.db.repositories import api_keys, workers
from app.db.tables import WorkerRow, db_now
from tests.tiny_base import BASE

STATE = WorkerState(
    training_slots=16,
    training_slots_free=15,
    serving_places=16,
    serving_places_free=0,
    open_requests=20,
    adapters=[("tnt-1", "adp-1", "ver-1")],
    counts=ServingCounts(adapter_hits=7, adapter_loads=2, prefix_hits=3, prefix_saved_tokens=900),
)


@pytest.fixture
def admin(api: Any) -> Iterator[str]:
    """A key of the first tenant that may see the workers, of which there are three."""
    with api.database.write() as session:
        tenant_id = api_keys.find_by_plaintext(session, api.key).tenant_id
        _, plaintext = api_keys.create(session, tenant_id, "operator", admin=True)
        for worker_id in ("wkr-1", "wkr-2", "wkr-3"):
            workers.register(session, worker_id=worker_id, base_model=BASE, device="cuda:0")
        workers.heartbeat(session, "wkr-1", STATE)
        for worker_id, silent in (("wkr-2", api.settings.lease_seconds + 60), ("wkr-3", 100_000)):
            silence = update(WorkerRow).where(WorkerRow.id == worker_id).values(heartbeat_at=db_now() - silent)
            session.execute(silence)
    return plaintext


def test_an_admin_sees_what_each_worker_told_and_who_is_gone(api: Any, admin: str) -> None:
    answer = api.send("GET", "/v1/workers", key=admin).json()
    told, gone = answer["data"]
    assert told["heartbeat_at"] >= told["started_at"] > 0
    assert 0 <= told["silent_seconds"] < api.settings.lease_seconds
    assert {name: told[name] for name in told if not name.endswith(("_at", "_seconds"))} == {
        "id": "wkr-1",
        "object": "worker",
        "status": "alive",
        "base_model": BASE,
        "device": "cuda:0",
        "role": "serve_and_train",
        "training_slots": {"total": 16, "free": 15},
        "serving_places": {"total": 16, "free": 0},
        "open_requests": 20,
        "load": 1.25,
        "adapters": [{"tenant_id": "tnt-1", "adapter_id": "adp-1", "version_id": "ver-1"}],
        "counts": {
            "adapter_hits": 7,
            "adapter_host_hits": 0,
            "adapter_loads": 2,
            "adapter_failed_loads": 0,
            "adapter_evictions": 0,
            "prefix_hits": 3,
            "prefix_saved_tokens": 900,
            "prefix_evictions": 0,
        },
    }
    assert (gone["id"], gone["status"], gone["load"]) == ("wkr-2", "gone", 0)
    assert gone["silent_seconds"] > api.settings.lease_seconds


def test_for_a_tenant_there_is_no_such_route(api: Any, admin: str) -> None:
    refused, nothing = (api.send("GET", path) for path in ("/v1/workers", "/v1/no-such-route"))
    assert refused.status_code == nothing.status_code == 404
    assert refused.json() == nothing.json()
    assert api.send("GET", "/v1/workers", key=admin).status_code == 200
    assert api.send("GET", "/v1/models", key=admin).json() == api.send("GET", "/v1/models").json()
