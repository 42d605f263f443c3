"""Adapters: bringing one, serving, switching, downloading and deleting versions."""

import io
import json
import zipfile
from typing import Any

import pytest
from safetensors.numpy import load

from tests.job_outcomes import adapter_files
from tests.tiny_base import BASE


def bring(api: Any, name: str = "mine", *, rank: int = 2, key: str | None = None) -> Any:
    weights, config = adapter_files(rank, 4.0, ["q_proj"])
    files = {"config": ("adapter_config.json", json.dumps(config)), "weights": ("adapter_model.safetensors", weights)}
    return api.send("POST", "/v1/adapters", key=key, files=files, data={"name": name, "base_model": BASE})


def test_an_uploaded_adapter_is_a_version_and_is_served(api: Any) -> None:
    first, second = bring(api).json(), bring(api, rank=3).json()
    assert (first["version"], second["version"], first["job"], first["parent_version"]) == (1, 2, None, None)
    adapter = api.send("GET", "/v1/adapters/mine").json()
    assert (adapter["active_version"], adapter["latest_version"], adapter["base_model"]) == (2, 2, BASE)
    assert adapter["footprint"] == {
        "trainable_parameters": 2 * 3 * (32 + 32),
        "adapter_bytes": second["bytes"],
        "base_parameters": 12_345,
        "base_bytes": 49_380,
        "ratio": second["bytes"] / 49_380,
    }
    api.send("POST", "/v1/adapters/mine/rollback")
    assert api.send("GET", "/v1/adapters/mine").json()["footprint"]["trainable_parameters"] == 2 * 2 * (32 + 32)
    version = api.send("GET", "/v1/adapters/mine/versions/1").json()
    assert version.pop("footprint")["trainable_parameters"] == 2 * 2 * (32 + 32)
    assert version == first
    assert api.send("GET", f"/v1/models/{first['model']}").json()["version"] == 1


def test_the_pointer_moves_and_versions_stay(api: Any) -> None:
    for rank in (2, 3, 4):
        bring(api, rank=rank)

    def move(path: str, body: Any = None) -> Any:
        return api.send("POST", f"/v1/adapters/mine/{path}", **({"json": body} if body is not None else {}))

    assert move("rollback").json()["active_version"] == 2
    assert move("activate", {"version": 3}).json()["active_version"] == 3
    assert move("rollback", {"version": 1}).json()["active_version"] == 1
    nowhere = move("rollback")
    assert (nowhere.status_code, nowhere.json()["error"]["code"]) == (400, "no_earlier_version")
    missing = move("activate", {"version": 9})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "version_not_found")
    assert move("activate", {"version": "3"}).json()["error"]["param"] == "version"
    assert api.rows()["adapter_versions"] == 3


def test_a_version_downloads_as_peft_loads_it(api: Any) -> None:
    bring(api)
    weights, config = adapter_files(2, 4.0, ["q_proj"])
    base = "/v1/adapters/mine/versions/1/download"
    archive = api.send("GET", base)
    assert archive.headers["content-type"] == "application/zip"
    assert int(archive.headers["content-length"]) == len(archive.content)
    with zipfile.ZipFile(io.BytesIO(archive.content)) as files:
        assert sorted(files.namelist()) == ["adapter_config.json", "adapter_model.safetensors"]
        assert json.loads(files.read("adapter_config.json")) == config
        assert load(files.read("adapter_model.safetensors")).keys() == load(weights).keys()
    assert api.send("GET", base).content == archive.content
    assert api.send("GET", f"{base}?file=adapter_model.safetensors").content == weights
    assert api.send("GET", f"{base}?file=adapter_config.json").json() == config
    other = api.send("GET", f"{base}?file=../../etc/passwd")
    assert (other.status_code, other.json()["error"]["param"]) == (404, "file")


def test_nothing_of_another_tenant_can_be_seen_or_moved(api: Any) -> None:
    model = bring(api, key=api.other_key).json()["model"]
    before = api.rows()
    for method, path, body in [
        ("GET", "", None),
        ("DELETE", "", None),
        ("GET", "/versions", None),
        ("GET", "/versions/1", None),
        ("GET", "/versions/1/download", None),
        ("POST", "/activate", {"version": 1}),
        ("POST", "/rollback", {}),
    ]:
        answer = api.send(method, f"/v1/adapters/mine{path}", **({"json": body} if body is not None else {}))
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "adapter_not_found"), path
    for name in ("mine", "mine@1", model):
        answer = api.send("GET", f"/v1/models/{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        chat = api.send(
            "POST", "/v1/chat/completions", json={"model": name, "messages": [{"role": "user", "content": "a"}]}
        )
        assert (chat.status_code, chat.json()["error"]["message"]) == (404, f"No such model: {name!r}")
    assert api.send("GET", "/v1/adapters").json()["data"] == []
    assert [m["id"] for m in api.send("GET", "/v1/models").json()["data"]] == [BASE]
    assert api.rows() == before
    assert bring(api).json()["version"] == 1


def test_a_deleted_adapter_is_gone_and_its_name_is_free(api: Any) -> None:
    bring(api)
    assert api.send("DELETE", "/v1/adapters/mine").json()["deleted"] is True
    assert api.send("GET", "/v1/adapters/mine").status_code == 404
    assert api.send("GET", "/v1/models/mine").status_code == 404
    assert bring(api).json()["version"] == 2
    assert api.send("GET", "/v1/models/mine@1").status_code == 404


def test_adapters_and_versions_are_listed_in_pages(api: Any) -> None:
    for name in ("a", "b", "c"):
        bring(api, name)
    bring(api, "a", rank=3)
    first = api.send("GET", "/v1/adapters?limit=2").json()
    assert ([a["name"] for a in first["data"]], first["has_more"]) == (["c", "b"], True)
    rest = api.send("GET", f"/v1/adapters?limit=2&after={first['last_id']}").json()
    assert ([a["name"] for a in rest["data"]], rest["has_more"]) == (["a"], False)
    versions = api.send("GET", "/v1/adapters/a/versions?limit=1").json()
    assert ([v["version"] for v in versions["data"]], versions["has_more"]) == ([2], True)


@pytest.mark.parametrize("name", ["with:colon", "a/b", "a@2", "-dash", "x" * 65, BASE])
def test_a_name_that_could_mean_something_else_is_refused(api: Any, name: str) -> None:
    before = api.rows()
    answer = bring(api, name)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "name")
    assert api.rows() == before
