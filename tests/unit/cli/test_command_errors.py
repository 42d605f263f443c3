"""Every expected failure is one line on stderr that names the next step, with exit code 1; a defect is no such line."""

import socket
from pathlib import Path

import pytest

from app.cli.errors import explain


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (["tenants", "list"], {}, "set GRAFT_DATABASE_URL, or GRAFT_DATA_DIR"),
        (["migrate"], {}, "set GRAFT_DATABASE_URL, or GRAFT_DATA_DIR"),
        (["api"], {}, "set GRAFT_DATABASE_URL, or GRAFT_DATA_DIR"),
        (["api"], {"GRAFT_DATABASE_URL": "sqlite:///x.db"}, "set GRAFT_REDIS_URL"),
        (["worker"], {"GRAFT_DATABASE_URL": "sqlite:///x.db"}, "set GRAFT_REDIS_URL"),
        (["worker"], {"GRAFT_DATA_DIR": "nowhere"}, "no deployment runs in nowhere"),
        (["tenants", "list"], {"GRAFT_DATA_DIR": "nowhere"}, "start one with 'graft serve --data-dir nowhere'"),
        (["tenants", "list"], {"GRAFT_DATABASE_URL": "sqlite:///empty.db"}, "run 'graft migrate' first"),
        (["tenants", "list"], {"GRAFT_DATABASE_URL": "sqlite:////no/such/folder/x.db"}, "check GRAFT_DATABASE_URL"),
        (["serve"], {}, "name a directory: --data-dir"),
        (["serve"], {"GRAFT_PORT": "many"}, "GRAFT_PORT: "),
        (
            ["serve", "--data-dir", "d"],
            {"GRAFT_DATABASE_URL": "sqlite:///x.db"},
            "brings its own database and Redis: unset",
        ),
        (["demo", "--examples", "nowhere"], {}, "no nowhere/support_chats.jsonl"),
    ],
)
def test_failure_is_one_line_with_the_next_step(graft, arguments, environment, expected: str) -> None:
    failed = graft(*arguments, **environment)
    assert failed.code == 1
    assert failed.out == ""
    assert failed.err.startswith("graft: ")
    assert failed.err.count("\n") == 1
    assert expected in failed.err


def test_unknown_base_model_is_named_with_the_known_ones(graft) -> None:
    places = {"GRAFT_DATABASE_URL": "sqlite:///x.db", "GRAFT_REDIS_URL": "redis://127.0.0.1:1"}
    failed = graft("worker", "--base-model", "gpt", **places)
    assert failed.code == 1
    assert "unknown base model 'gpt': choose one of smollm2-135m-instruct" in failed.err


def test_broken_config_file_is_named(graft, tmp_path: Path) -> None:
    (tmp_path / "graft.toml").write_text("[[base_models]]\nid = 'a'\nsource = 'zip:x'\n")
    places = {"GRAFT_DATABASE_URL": "sqlite:///x.db", "GRAFT_REDIS_URL": "redis://127.0.0.1:1"}
    failed = graft("worker", **places)
    assert failed.code == 1
    assert failed.err.startswith("graft: graft.toml: ")


def test_unreachable_postgres_is_one_line(graft) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    failed = graft("tenants", "list", GRAFT_DATABASE_URL=f"postgresql+psycopg://u:p@127.0.0.1:{port}/x")
    assert failed.code == 1
    assert failed.err.startswith("graft: cannot use the database")
    assert failed.err.count("\n") == 1


def test_a_defect_is_not_explained_away() -> None:
    assert explain(ZeroDivisionError("division by zero")) is None
