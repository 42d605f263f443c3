"""The embedded deployment: one owner of a directory, secrets for the owner alone, a Valkey that asks its password."""

import json
import os
import socket
import threading
from pathlib import Path

import pytest
import redis

from app.cli import supervisor
from app.cli.embedded import announced, check_port_free, owned_directory, valkey_server
from app.cli.errors import CliError
from app.cli.serve import _answers, _prepare_database
from app.cli.supervisor import Child
from app.db.repositories import workers
from app.db.session import Database
from app.db.tables import BaseModelRow


def test_directory_is_private_and_has_one_owner(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "data"
    with owned_directory(directory):
        assert directory.stat().st_mode & 0o777 == 0o700
        with (
            pytest.raises(CliError, match=r"another 'graft serve' runs in .*data: stop it"),
            owned_directory(directory),
        ):
            pass
    with owned_directory(directory):
        pass


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CliError, match="choose another --data-dir"), owned_directory(tmp_path / "file"):
        pass


def test_taken_port_is_refused_by_name() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CliError, match=f"cannot listen on 127.0.0.1:{port}"):
            check_port_free("127.0.0.1", port)
    check_port_free("127.0.0.1", port)


def test_note_is_private_and_goes_away(tmp_path: Path) -> None:
    note = tmp_path / "deployment.json"
    note.write_text("left by a killed server")
    note.chmod(0o644)
    with announced(tmp_path, "redis://:secret@127.0.0.1:1/0", "http://127.0.0.1:2"):
        assert note.stat().st_mode & 0o777 == 0o600
        assert json.loads(note.read_text()) == {
            "redis_url": "redis://:secret@127.0.0.1:1/0",
            "url": "http://127.0.0.1:2",
            "pid": os.getpid(),
        }
    assert not note.exists()


def test_valkey_answers_only_with_its_password_and_leaves_none_on_disk(tmp_path: Path) -> None:
    server = valkey_server(tmp_path)
    child = Child("valkey", server.command, os.environ, 5.0, standard_input=server.configuration)
    supervisor.start(child)
    try:
        assert supervisor.wait_until(lambda: _answers(server.url), [child], threading.Event(), 10.0)
        stranger = redis.Redis.from_url("redis://" + server.url.split("@")[1])
        with pytest.raises(redis.AuthenticationError):
            stranger.ping()
        stranger.close()
        password = server.url.split(":")[2].split("@")[0].encode()
        assert len(password) >= 32
        assert password not in " ".join(server.command).encode()
        assert [path.name for path in tmp_path.iterdir() if password in path.read_bytes()] == []
    finally:
        supervisor.stop(child)
    assert supervisor.exit_code(child) == 0
    assert not _answers(server.url)


def test_workers_of_an_earlier_server_are_forgotten(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'graft.db'}"
    _prepare_database(url)
    database = Database(url)
    with database.write() as session:
        session.add(BaseModelRow(id="tiny", info={}, sha256="0" * 64))
        session.flush()
        workers.register(session, worker_id="wkr-killed", base_model="tiny", device="cpu")
    _prepare_database(url)
    with database.read() as session:
        assert workers.alive(session, within_seconds=60.0) == []
    database.dispose()
