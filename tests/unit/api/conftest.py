"""The application on a migrated SQLite and a real Valkey, two tenants with keys, and a worker that computes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from app.core.settings import Settings
from app.db.repositories import api_keys, base_models, tenants
from app.db.session import Database
from app.db.tables import Base
from app.main import create_app
from tests.fake_worker import FakeWorker
from tests.tiny_base import tiny_base

CHAT_LINE = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n'


@dataclass
class Api:
    """A client of the application, as the first of two tenants."""

    http: TestClient
    database: Database
    settings: Settings
    key: str
    other_key: str

    def send(self, method: str, path: str, *, key: str | None = None, **arguments: Any) -> Any:
        """Send a request with the tenant's key, or another one."""
        headers = {"Authorization": f"Bearer {key or self.key}"} | arguments.pop("headers", {})
        return self.http.request(method, path, headers=headers, **arguments)

    def upload(self, content: str | bytes = CHAT_LINE * 10, *, key: str | None = None) -> str:
        """Upload a training file and return its id."""
        files = {"file": ("train.jsonl", content)}
        answer = self.send("POST", "/v1/files", key=key, files=files, data={"purpose": "fine-tune"})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def rows(self) -> dict[str, int]:
        """Count the rows of every table."""
        with self.database.read() as session:
            return {
                table.name: session.scalar(select(func.count()).select_from(table)) or 0
                for table in Base.metadata.sorted_tables
            }


@pytest.fixture
def settings(sqlite_url: str, valkey_url: str) -> Settings:
    """Settings of the test's own servers."""
    return Settings(
        database_url=sqlite_url,
        redis_url=valkey_url,
        request_timeout=5,
        max_file_bytes=200_000,
        max_adapter_bytes=200_000,
        log_level="error",
    )


@pytest.fixture
def api(settings: Settings) -> Iterator[Api]:
    """A client of the running application."""
    database = Database(settings.resolved_database_url())
    keys = []
    with database.write() as session:
        base_models.upsert(session, tiny_base())
        for name in ("acme", "globex"):
            keys.append(api_keys.create(session, tenants.create(session, name).id, "first")[1])
    with TestClient(create_app(settings), raise_server_exceptions=False) as http:
        yield Api(http, database, settings, *keys)
    database.dispose()


@pytest.fixture
def worker(api: Api) -> Iterator[FakeWorker]:
    """A live worker for the tiny base."""
    settings = api.settings
    with FakeWorker(settings.resolved_database_url(), settings.resolved_redis_url(), tiny_base()) as worker:
        yield worker
