"""The commands that work on the database: what they print, what they store, and how they fail."""

import json
from pathlib import Path

import pytest

from app.contracts.base_models import BaseModelInfo, ModuleShape
from app.db.repositories import api_keys, base_models, workers
from app.db.session import Database

NOUNS = ["serve", "api", "worker", "migrate", "demo", "tenants", "keys", "models"]


@pytest.fixture
def deployment(graft, tmp_path: Path) -> Path:
    """Return a data directory with an empty, migrated database."""
    directory = tmp_path / "data"
    assert graft("migrate", GRAFT_DATA_DIR=str(directory)).code == 0
    return directory


def database(directory: Path) -> Database:
    """Open the database of a data directory."""
    return Database(f"sqlite:///{directory / 'graft.db'}")


def test_help_names_every_command(graft) -> None:
    shown = graft("--help")
    assert shown.code == 0
    assert [noun for noun in NOUNS if noun not in shown.out] == []


@pytest.mark.parametrize("arguments", [["nonsense"], ["tenants", "create"], ["serve", "--port", "99999"]])
def test_wrong_usage_exits_with_2(graft, arguments: list[str]) -> None:
    assert graft(*arguments).code == 2


def test_migrate_makes_a_private_directory_and_may_run_again(graft, deployment: Path) -> None:
    assert deployment.stat().st_mode & 0o777 == 0o700
    again = graft("migrate", "--check", GRAFT_DATA_DIR=str(deployment))
    assert (again.code, again.out) == (0, "The database is up to date.\n")


def test_created_tenant_owns_the_key_that_is_printed(graft, deployment: Path) -> None:
    made = json.loads(graft("tenants", "create", "acme", "--json", GRAFT_DATA_DIR=str(deployment)).out)
    assert made["api_key"].startswith("tml-")
    opened = database(deployment)
    with opened.read() as session:
        key = api_keys.find_by_plaintext(session, made["api_key"])
        assert key is not None
        assert (key.tenant_id, key.id) == (made["id"], made["api_key_id"])
    opened.dispose()


def test_plain_output_shows_the_key_once(graft, deployment: Path) -> None:
    shown = graft("tenants", "create", "acme", GRAFT_DATA_DIR=str(deployment)).out
    assert shown.count("tml-") == 1
    listed = graft("tenants", "list", GRAFT_DATA_DIR=str(deployment)).out
    assert "acme" in listed
    assert "tml-" not in listed


def test_tenant_names_are_unique(graft, deployment: Path) -> None:
    graft("tenants", "create", "acme", GRAFT_DATA_DIR=str(deployment))
    again = graft("tenants", "create", "acme", GRAFT_DATA_DIR=str(deployment))
    assert again.code == 1
    assert again.err == "graft: a tenant 'acme' exists already: make a key with 'graft keys create acme'\n"


@pytest.mark.parametrize("name", ["a:b", "", "-x", "a b", "x" * 65, "größe"])
def test_tenant_names_fit_into_model_names(graft, deployment: Path, name: str) -> None:
    refused = graft("tenants", "create", "--", name, GRAFT_DATA_DIR=str(deployment))
    assert refused.code == 1
    assert "cannot name a tenant" in refused.err
    assert json.loads(graft("tenants", "list", "--json", GRAFT_DATA_DIR=str(deployment)).out) == []


def test_keys_are_made_listed_and_revoked(graft, deployment: Path) -> None:
    here = {"GRAFT_DATA_DIR": str(deployment)}
    graft("tenants", "create", "acme", **here)
    made = json.loads(graft("keys", "create", "acme", "--name", "ci", "--json", **here).out)
    assert graft("keys", "revoke", "acme", made["id"], **here).out == f"Revoked {made['id']}.\n"
    listed = json.loads(graft("keys", "list", "acme", "--json", **here).out)
    assert [(key["name"], key["revoked"]) for key in listed] == [("first", False), ("ci", True)]
    assert made["api_key"] not in graft("keys", "list", "acme", **here).out
    opened = database(deployment)
    with opened.read() as session:
        assert api_keys.find_by_plaintext(session, made["api_key"]) is None
    opened.dispose()


def test_a_key_may_be_an_admins(graft, deployment: Path) -> None:
    here = {"GRAFT_DATA_DIR": str(deployment)}
    graft("tenants", "create", "acme", **here)
    assert json.loads(graft("keys", "create", "acme", "--admin", "--json", **here).out)["admin"] is True
    assert "(default, admin)" in graft("keys", "create", "acme", "--admin", **here).out
    listed = json.loads(graft("keys", "list", "acme", "--json", **here).out)
    assert [key["admin"] for key in listed] == [False, True, True]
    assert graft("keys", "list", "acme", **here).out.count("(admin)") == 2


def test_a_key_of_another_tenant_cannot_be_revoked(graft, deployment: Path) -> None:
    here = {"GRAFT_DATA_DIR": str(deployment)}
    graft("tenants", "create", "acme", **here)
    other = json.loads(graft("tenants", "create", "other", "--json", **here).out)
    refused = graft("keys", "revoke", "acme", other["api_key_id"], **here)
    assert refused.code == 1
    assert "has no key" in refused.err
    assert json.loads(graft("keys", "list", "other", "--json", **here).out)[0]["revoked"] is False


def test_keys_of_an_unknown_tenant(graft, deployment: Path) -> None:
    refused = graft("keys", "list", "nobody", GRAFT_DATA_DIR=str(deployment))
    assert (refused.code, refused.err) == (1, "graft: no tenant 'nobody': see 'graft tenants list'\n")


def test_models_list_counts_living_workers(graft, deployment: Path) -> None:
    here = {"GRAFT_DATA_DIR": str(deployment)}
    assert "No base models yet" in graft("models", "list", **here).out
    info = BaseModelInfo(
        id="tiny",
        architecture="llama",
        parameters=1234567,
        context_length=64,
        vocab_size=8,
        dtype="float32",
        quantization="int8",
        bytes=1300000,
        modules={"model.layers.0.mlp.up_proj": ModuleShape(out_features=4, in_features=2)},
        default_targets=["up_proj"],
        tokenizer_json="{}",
        chat_template=None,
        bos_token_id=None,
        eos_token_ids=[0],
    )
    opened = database(deployment)
    with opened.write() as session:
        base_models.upsert(session, info)
        workers.register(session, worker_id="wkr-1", base_model="tiny", device="cpu")
    opened.dispose()
    assert json.loads(graft("models", "list", "--json", **here).out) == [
        {
            "id": "tiny",
            "architecture": "llama",
            "parameters": 1234567,
            "context_length": 64,
            "dtype": "float32",
            "quantization": "int8",
            "bytes": 1300000,
            "workers": 1,
        }
    ]
    shown = graft("models", "list", **here).out
    assert all(part in shown for part in ("llama", "1,234,567 parameters", "1,300,000 bytes", "quantization int8"))


def test_a_tenants_share_and_limits_are_set_shown_and_lifted(graft, deployment: Path) -> None:
    here = {"GRAFT_DATA_DIR": str(deployment)}
    graft("tenants", "create", "acme", **here)
    limits = ["--weight", "2.5", "--max-running-jobs", "4", "--tokens-per-day", "1000000"]
    done = graft("tenants", "set", "acme", *limits, **here)
    assert (done.code, done.out) == (0, "Set max_running_jobs, tokens_per_day, weight of acme.\n")
    [shown] = json.loads(graft("tenants", "list", "--json", **here).out)
    assert (shown["weight"], shown["max_running_jobs"], shown["max_queued_jobs"]) == (2.5, 4, None)
    assert "weight 2.5  max-running-jobs 4  tokens-per-day 1000000\n" in graft("tenants", "list", **here).out
    graft("tenants", "set", "acme", "--max-running-jobs", "none", "--max-queued-jobs", "0", **here)
    [shown] = json.loads(graft("tenants", "list", "--json", **here).out)
    assert (shown["weight"], shown["max_running_jobs"], shown["max_queued_jobs"]) == (2.5, None, 0)
    assert shown["tokens_per_day"] == 1000000


@pytest.mark.parametrize("option", [("--weight", "0"), ("--tokens-per-day", "-1"), ("--max-queued-jobs", "many")])
def test_a_limit_that_is_none_is_refused_as_wrongly_typed(graft, deployment: Path, option: tuple[str, str]) -> None:
    refused = graft("tenants", "set", "acme", *option, GRAFT_DATA_DIR=str(deployment))
    assert refused.code == 2
    assert option[0] in refused.err


def test_setting_nothing_or_of_nobody_says_so(graft, deployment: Path) -> None:
    here = {"GRAFT_DATA_DIR": str(deployment)}
    assert graft("tenants", "set", "nobody", **here).err.startswith("graft: nothing to set")
    assert graft("tenants", "set", "nobody", "--weight", "2", **here).err.startswith("graft: no tenant 'nobody'")
