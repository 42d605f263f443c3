"""Tenancy: every repository function takes the tenant who asks, and none returns or changes a row of another."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from types import FunctionType

import pytest
from sqlalchemy.orm import Session

from app.db import blobs, queue, repositories
from app.db.blobs import write_blob
from app.db.repositories import adapters, api_keys, files, idempotency, jobs, pauses, tenants
from app.db.session import Database
from tests.integration.db import rows

FOR_THE_OPERATOR = {
    "tenants.create",
    "tenants.get_by_name",
    "tenants.list",
    "base_models.upsert",
    "base_models.get",
    "base_models.list",
    "workers.register",
    "workers.heartbeat",
    "workers.alive",
    "workers.seen",
    "workers.forget_all",
}
"""What belongs to the deployment and to no tenant."""
WITHOUT_ROWS = {"paging.fetch_page", "idempotency.request_sha256", "base_models.info_of"}
"""Helpers that choose no rows themselves."""
FINDS_THE_TENANT = {"api_keys.find_by_plaintext"}
"""How a request learns its tenant in the first place."""


def public_functions() -> Iterator[tuple[str, FunctionType]]:
    names = [module.name for module in pkgutil.iter_modules(repositories.__path__)]
    modules = [importlib.import_module(f"{repositories.__name__}.{name}") for name in names] + [blobs]
    for module in modules:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                yield f"{module.__name__.rsplit('.', 1)[-1]}.{name}", function


def test_every_repository_function_takes_the_session_and_then_the_tenant() -> None:
    functions = dict(public_functions())
    exempt = FOR_THE_OPERATOR | WITHOUT_ROWS | FINDS_THE_TENANT
    assert exempt <= set(functions), "an exemption outlived its function"
    checked = [name for name in functions if name not in exempt]
    for name in checked:
        first, second, *_rest = inspect.signature(functions[name]).parameters.values()
        assert (first.name, second.name) == ("session", "tenant_id"), name
        assert (second.annotation, second.default) == (str, inspect.Parameter.empty), name
    assert len(checked) >= 35


@pytest.fixture
def owned(database: Database, tenant: str) -> dict[str, str]:
    """One row of everything, of the first tenant."""
    with database.write() as session:
        key, plaintext = api_keys.create(session, tenant, "ci")
        blob = write_blob(session, tenant, b'{"text": "secret"}\n')
        file = files.create(session, tenant, blob=blob, filename="a.jsonl", purpose="fine-tune", examples=1)
        job = rows.add_job(session, tenant, training_file=file.id, training_blob_id=blob.id)
        idempotency.record(session, tenant, route="jobs", key="k", request_sha256="0" * 64, job_id=job.id)
    lease = rows.claim_one(database).lease
    queue.save_snapshot(database, lease, 1, b"tensors", {})
    queue.save_checkpoint(database, lease, 1, b"checkpoint", {}, {})
    with database.write() as session:
        version = adapters.add_uploaded_version(
            session, tenant, name="support", base_model=rows.BASE, weights=b"weights", config={}, metrics={}
        )
        adapters.add_uploaded_version(
            session, tenant, name="support", base_model=rows.BASE, weights=b"more weights", config={}, metrics={}
        )
    return {
        "key": key.id,
        "plaintext": plaintext,
        "blob": blob.id,
        "file": file.id,
        "job": job.id,
        "version": version.id,
        "adapter": version.adapter_id,
    }


READS: dict[str, tuple[Callable[[Session, str, dict[str, str]], object], object]] = {
    "api_keys.list": (lambda s, t, o: list(api_keys.list(s, t)), []),
    "files.get": (lambda s, t, o: files.get(s, t, o["file"]), None),
    "files.list": (lambda s, t, o: files.list(s, t), ([], False)),
    "jobs.get": (lambda s, t, o: jobs.get(s, t, o["job"]), None),
    "jobs.list": (lambda s, t, o: jobs.list(s, t), ([], False)),
    "jobs.count": (lambda s, t, o: jobs.count(s, t, "running"), 0),
    "jobs.events": (lambda s, t, o: jobs.events(s, t, o["job"]), ([], False)),
    "jobs.checkpoints": (lambda s, t, o: jobs.checkpoints(s, t, o["job"]), ([], False)),
    "adapters.get": (lambda s, t, o: adapters.get(s, t, o["adapter"]), None),
    "adapters.get_by_name": (lambda s, t, o: adapters.get_by_name(s, t, "support"), None),
    "adapters.list": (lambda s, t, o: adapters.list(s, t), ([], False)),
    "adapters.versions": (lambda s, t, o: adapters.versions(s, t, o["adapter"]), ([], False)),
    "adapters.get_version": (lambda s, t, o: adapters.get_version(s, t, o["adapter"], 1), None),
    "adapters.get_version_by_id": (lambda s, t, o: adapters.get_version_by_id(s, t, o["version"]), None),
    "adapters.get_checkpoint": (lambda s, t, o: adapters.get_checkpoint(s, t, o["job"], 1), None),
    "queue.load_snapshot": (lambda s, t, o: queue.load_snapshot(s, t, o["job"]), None),
    "idempotency.find": (
        lambda s, t, o: idempotency.find(s, t, route="jobs", key="k", request_sha256="0" * 64),
        None,
    ),
}


def test_no_read_returns_a_row_of_another_tenant(
    database: Database, tenant: str, other_tenant: str, owned: dict[str, str]
) -> None:
    for name, (read, nothing) in READS.items():
        with database.write() as session:
            assert read(session, tenant, owned) != nothing, f"{name} finds its own"
            assert read(session, other_tenant, owned) == nothing, f"{name} finds another's"


def refused(error: type[Exception], write: Callable[[], object]) -> bool:
    with pytest.raises(error):
        write()
    return False


WRITES: dict[str, Callable[[Session, str, dict[str, str]], object]] = {
    "api_keys.revoke": lambda s, t, o: api_keys.revoke(s, t, o["key"]),
    "api_keys.mark_used": lambda s, t, o: api_keys.mark_used(s, t, o["key"]),
    "files.delete": lambda s, t, o: files.delete(s, t, o["file"]),
    "jobs.request_cancel": lambda s, t, o: jobs.request_cancel(s, t, o["job"]),
    "pauses.request": lambda s, t, o: pauses.request(s, t, o["job"]),
    "pauses.resume": lambda s, t, o: pauses.resume(s, t, o["job"]),
    "adapters.delete": lambda s, t, o: adapters.delete(s, t, o["adapter"]),
    "blobs.delete_blob_if_unused": lambda s, t, o: blobs.delete_blob_if_unused(s, t, o["blob"]),
    "adapters.activate": lambda s, t, o: refused(
        adapters.NoSuchVersionError, lambda: adapters.activate(s, t, o["adapter"], 1)
    ),
    "adapters.rollback": lambda s, t, o: refused(
        adapters.NoSuchVersionError, lambda: adapters.rollback(s, t, o["adapter"])
    ),
}


def test_no_write_changes_a_row_of_another_tenant(database: Database, other_tenant: str, owned: dict[str, str]) -> None:
    before = rows.dump(database)
    for name, write in WRITES.items():
        with database.write() as session:
            assert not write(session, other_tenant, owned), name
        assert rows.dump(database) == before, name


def test_two_tenants_may_use_the_same_names(database: Database, tenant: str, other_tenant: str) -> None:
    made = []
    for owner in (tenant, other_tenant):
        with database.write() as session:
            made.append(
                adapters.add_uploaded_version(
                    session, owner, name="support", base_model=rows.BASE, weights=b"same", config={}, metrics={}
                )
            )
    assert [version.version for version in made] == [1, 1]
    assert made[0].adapter_id != made[1].adapter_id
    assert made[0].weights_id != made[1].weights_id


def test_a_tenants_name_is_unique(database: Database, tenant: str) -> None:
    with pytest.raises(tenants.TenantNameTakenError, match="'acme' exists already"), database.write() as session:
        tenants.create(session, "acme")
    with database.read() as session:
        assert [row.id for row in tenants.list(session)] == [tenant]
        found = tenants.get_by_name(session, "acme")
        assert found is not None
        assert found == tenants.get(session, tenant)
        assert tenants.get(session, "tnt-unknown") is None
