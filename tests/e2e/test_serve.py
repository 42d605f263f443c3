"""`graft serve` as others meet it: one server a directory, a private note, commands that find it."""

import json
import os

import httpx

from tests.e2e.conftest import BASE, Server


def test_a_second_server_in_the_directory_is_refused(server: Server) -> None:
    refused = server.graft("serve", "--data-dir", str(server.data_dir), "--port", "1")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"graft: another 'graft serve' runs in {server.data_dir}: stop it")


def test_a_taken_port_is_refused_and_leaves_no_note(server: Server, tmp_path) -> None:
    port = server.url.rsplit(":", 1)[1]
    refused = server.graft("serve", "--data-dir", str(tmp_path / "other"), "--port", port)
    assert refused.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in refused.stderr
    assert not (tmp_path / "other" / "deployment.json").exists()


def test_note_is_for_the_owner_alone(server: Server) -> None:
    note = server.data_dir / "deployment.json"
    assert note.stat().st_mode & 0o777 == 0o600
    written = json.loads(note.read_text())
    assert written["url"] == server.url
    os.kill(written["pid"], 0)


def test_ready_means_that_a_worker_is_there(server: Server) -> None:
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    assert httpx.get(f"{server.url}/readyz").status_code == 200
    listed = json.loads(server.graft("models", "list", "--json").stdout)
    assert [(model["id"], model["workers"]) for model in listed] == [(BASE, 1)]
