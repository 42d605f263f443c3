"""Merging over HTTP: asked for once, done by a worker, downloaded as a file; refused clearly before it is queued."""

import hashlib
from typing import Any

import pytest

from app.db import queue
from app.db.session import Database
from app.main import create_app
from tests.fake_worker import FakeWorker
from tests.unit.api.test_api_adapters import bring

MERGED = b"a merged model" * 100
PATH = "/v1/adapters/mine/versions/1/merge"


def merge_it(database: Database, job: queue.ClaimedMerge) -> None:
    """End a merge as a worker does."""
    blob_id = queue.begin_staging(database, job.lease)
    queue.extend_staged(database, job.lease, blob_id, 0, [MERGED])
    output = queue.StagedBytes(blob_id, hashlib.sha256(MERGED).hexdigest(), len(MERGED))
    queue.finish_merged(database, job.lease, output, f"{job.adapter_name}-{job.config.version}.tar")


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_merged_model_is_downloaded_as_a_file(api: Any, worker: FakeWorker) -> None:
    bring(api)
    worker.finish_job = merge_it
    queued = api.send("POST", PATH, json={"format": "hf", "metadata": {"team": "a"}}).json()
    assert (queued["kind"], queued["model"], queued["merge"]) == ("merge", "mine@1", {"format": "hf", "version": 1})
    assert (queued["result_files"], queued["training"], queued["lora"]) == ([], None, None)
    path = f"/v1/fine_tuning/jobs/{queued['id']}"
    worker.wait_until(lambda: api.send("GET", path).json()["status"] == "succeeded")
    job = api.send("GET", path).json()
    (file_id,) = job["result_files"]
    assert job["result"] == {
        "file": file_id, "filename": "mine-1.tar", "bytes": len(MERGED), "sha256": hashlib.sha256(MERGED).hexdigest()
    }  # fmt: skip
    content = api.send("GET", f"/v1/files/{file_id}/content")
    assert content.content == MERGED
    assert "mine-1.tar" in content.headers["content-disposition"]
    assert api.send("GET", "/v1/files?purpose=merge-output").json()["data"][0]["id"] == file_id
    messages = [event["message"] for event in api.send("GET", f"{path}/events").json()["data"]]
    assert messages[0] == f"Job succeeded: {file_id} holds mine-1.tar, {len(MERGED)} bytes"
    assert [row["id"] for row in api.send("GET", "/v1/fine_tuning/jobs").json()["data"]] == [job["id"]]
    for other in (f"/v1/files/{file_id}/content", path):
        assert api.send("GET", other, key=api.other_key).status_code == 404


def test_a_merged_model_is_not_taken_for_training_data(api: Any, worker: FakeWorker) -> None:
    bring(api)
    worker.finish_job = merge_it
    job = api.send("POST", PATH, json={}).json()
    path = f"/v1/fine_tuning/jobs/{job['id']}"
    worker.wait_until(lambda: api.send("GET", path).json()["status"] == "succeeded")
    (file_id,) = api.send("GET", path).json()["result_files"]
    for answer in (
        api.send("GET", f"/v1/files/{file_id}/preview?model=mine"),
        api.send("POST", "/v1/evaluate", json={"model": "mine", "file": file_id}),
        api.send("POST", "/v1/fine_tuning/jobs", json={"model": "mine", "training_file": file_id}),
    ):
        assert code(answer) == (400, "invalid_purpose")
    assert api.send("DELETE", f"/v1/files/{file_id}").json()["deleted"] is True
    assert api.send("GET", f"/v1/files/{file_id}/content").status_code == 404
    assert api.send("GET", path).json()["result_files"] == [file_id]


def test_a_merge_is_asked_for_once_and_cancelled_like_any_job(api: Any, worker: FakeWorker) -> None:
    bring(api)
    headers = {"Idempotency-Key": "once"}
    first = api.send("POST", PATH, json={"format": "gguf"}, headers=headers).json()
    assert api.send("POST", PATH, json={"format": "gguf"}, headers=headers).json()["id"] == first["id"]
    assert code(api.send("POST", PATH, json={"format": "hf"}, headers=headers)) == (409, "idempotency_key_reused")
    cancelled = api.send("POST", f"/v1/fine_tuning/jobs/{first['id']}/cancel").json()
    assert (cancelled["status"], cancelled["result_files"]) == ("cancelled", [])


def test_what_cannot_be_merged_is_refused_before_it_is_queued(api: Any, worker: FakeWorker) -> None:
    bring(api)
    before = api.rows()
    assert code(api.send("POST", "/v1/adapters/mine/versions/2/merge", json={})) == (404, "version_not_found")
    assert code(api.send("POST", "/v1/adapters/yours/versions/1/merge", json={})) == (404, "adapter_not_found")
    assert code(api.send("POST", PATH, json={}, key=api.other_key)) == (404, "adapter_not_found")
    assert api.send("POST", PATH, json={"format": "onnx"}).json()["error"]["param"] == "format"
    assert code(api.send("POST", PATH, json={"quantize": True})) == (400, "unknown_parameter")
    assert api.rows() == before


def test_without_a_worker_for_the_base_a_merge_waits_for_nobody(api: Any) -> None:
    bring(api)
    answer = api.send("POST", PATH, json={})
    assert code(answer) == (503, "base_model_not_hosted")
    assert int(answer.headers["retry-after"]) > 0
    assert api.rows()["jobs"] == 0


@pytest.mark.parametrize(("wish", "size"), [("merge", 4 * 12_345), ("full", 24 * 12_345)])
def test_a_model_too_large_for_the_database_is_refused_with_its_size(
    api: Any, worker: FakeWorker, wish: str, size: int
) -> None:
    bring(api)
    file_id = api.upload()
    app = create_app(api.settings.model_copy(update={"max_checkpoint_bytes": size - 1}))
    with type(api.http)(app) as http:
        headers = {"Authorization": f"Bearer {api.key}"}
        if wish == "merge":
            answer = http.post(PATH, json={"format": "hf"}, headers=headers)
        else:
            body = {"model": worker.info.id, "training_file": file_id, "mode": "full"}
            answer = http.post("/v1/fine_tuning/jobs", json=body, headers=headers)
    assert code(answer) == (400, "checkpoint_too_large")
    error = answer.json()["error"]
    assert error["param"] == ("format" if wish == "merge" else "mode")
    assert f"about {size} bytes" in error["message"]
    assert f"at most {size - 1}" in error["message"]
