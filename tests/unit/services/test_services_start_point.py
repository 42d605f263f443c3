"""Where a job starts and which adapter it feeds."""

from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session

from app.core.errors import ConflictError, InvalidRequestError, NotFoundError
from app.db.repositories import adapters, base_models, tenants
from app.db.session import Database
from app.services.model_names import resolve_model, version_name
from app.services.start_point import resolve_start
from tests.job_outcomes import adapter_files
from tests.tiny_base import BASE, tiny_base


@pytest.fixture
def session(sqlite_url: str) -> Iterator[Session]:
    """A write session with two bases."""
    database = Database(sqlite_url)
    with database.write() as session:
        for base in (BASE, "other-base"):
            base_models.upsert(session, tiny_base(base))
        yield session
    database.dispose()


@pytest.fixture
def tenant_id(session: Session) -> str:
    """A tenant with adapter `mine` at version 2 of 2, and `other` on another base."""
    tenant_id = tenants.create(session, "acme").id
    for name, base, rank in (("mine", BASE, 2), ("mine", BASE, 2), ("other", "other-base", 3)):
        weights, config = adapter_files(rank, 4.0, ["q_proj"])
        adapters.add_uploaded_version(
            session, tenant_id, name=name, base_model=base, weights=weights, config=config, metrics={}
        )
    return tenant_id


def test_a_base_alone_starts_fresh(session: Session, tenant_id: str) -> None:
    start = resolve_start(session, tenant_id, BASE, "new", None)
    assert (start.adapter_name, start.adapter_id, start.version, start.shape) == ("new", None, None, None)
    named = resolve_start(session, tenant_id, BASE, None, "Our Bot!").adapter_name
    assert named.startswith("Our-Bot-")
    assert resolve_start(session, tenant_id, BASE, None, "Our Bot!").adapter_name != named


@pytest.mark.parametrize(("model", "adapter"), [("mine", None), (BASE, "mine"), ("mine", "mine")])
def test_an_existing_adapter_is_continued(session: Session, tenant_id: str, model: str, adapter: str | None) -> None:
    start = resolve_start(session, tenant_id, model, adapter, None)
    held = adapters.get_by_name(session, tenant_id, "mine")
    assert held is not None
    assert (start.adapter_name, start.adapter_id) == ("mine", held.id)
    assert start.version is not None
    assert start.version.version == 2
    assert start.shape is not None
    assert (start.shape.rank, start.shape.targets, start.shape.parameters) == (2, ["q_proj"], 2 * 2 * (32 + 32))


def test_a_pinned_version_may_feed_a_new_adapter(session: Session, tenant_id: str) -> None:
    start = resolve_start(session, tenant_id, "mine@1", "fork", None)
    assert (start.adapter_name, start.adapter_id) == ("fork", None)
    assert start.version is not None
    assert start.version.version == 1


def test_contradictions_are_refused(session: Session, tenant_id: str) -> None:
    with pytest.raises(InvalidRequestError, match="'other' stands on other-base, not on tiny-base"):
        resolve_start(session, tenant_id, BASE, "other", None)
    with pytest.raises(ConflictError, match="'other' exists already"):
        resolve_start(session, tenant_id, "mine", "other", None)
    with pytest.raises(InvalidRequestError, match="name of a base model"):
        resolve_start(session, tenant_id, BASE, "other-base", None)


@pytest.mark.parametrize("name", ["mine@3", "mine@0", "mine@", "ft:x", "a b", "", "x" * 300, "mine\x00", "../mine"])
def test_a_name_that_means_nothing_is_not_found(session: Session, tenant_id: str, name: str) -> None:
    with pytest.raises(NotFoundError):
        resolve_model(session, tenant_id, name)


def test_a_fine_tuned_name_must_fit_whole(session: Session, tenant_id: str) -> None:
    good = version_name(BASE, tenant_id, "mine", 1)
    resolved = resolve_model(session, tenant_id, good)
    assert resolved.version is not None
    assert (resolved.name, resolved.version.version) == (good, 1)
    assert resolved.ref is not None
    assert resolved.ref.tenant_id == tenant_id
    for bad in (
        version_name("other-base", tenant_id, "mine", 1),
        version_name(BASE, "tnt-someone", "mine", 1),
        version_name(BASE, tenant_id, "other", 1),
        version_name(BASE, tenant_id, "mine", 3),
        f"{good}:step-1",
    ):
        with pytest.raises(NotFoundError):
            resolve_model(session, tenant_id, bad)


@pytest.mark.parametrize("part", ["base", "adapter", "job"])
def test_a_name_that_postgresql_cannot_even_compare_is_not_found(database: Database, part: str) -> None:
    parts = {"base": "base", "adapter": "mine", "job": "ftjob-1"} | {part: "a\x00"}
    with database.read() as session, pytest.raises(NotFoundError):
        resolve_model(session, "tnt-1", f"ft:{parts['base']}:tnt-1:{parts['adapter']}:{parts['job']}:step-1")
