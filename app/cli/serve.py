"""`graft serve`: everything on one machine in one command: SQLite, Valkey, the API and a worker for each base model."""

import os
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import httpx
import redis
import typer

from app.cli import supervisor
from app.cli.embedded import announced, check_port_free, owned_directory, valkey_server
from app.cli.errors import CliError
from app.cli.supervisor import Child
from app.cli.worker import worker_command
from app.cli.worker_environment import worker_environment
from app.core.settings import Settings, get_settings
from app.db.migrate import upgrade
from app.db.repositories import workers
from app.db.session import Database

READY_SECONDS = 300.0
VALKEY_SECONDS = 10.0


def _say(line: str) -> None:
    typer.echo(f"graft: {line}", err=True)


def _answers(redis_url: str) -> bool:
    client = redis.Redis.from_url(redis_url, socket_timeout=1.0)
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _prepare_database(url: str) -> None:
    """Migrate, and strike the workers of an earlier server: whoever owns the directory knows that they are gone."""
    upgrade(url)
    database = Database(url)
    try:
        with database.write() as session:
            workers.forget_all(session)
    finally:
        database.dispose()


def _service_children(settings: Settings, host: str, port: int, environment: dict[str, str]) -> list[Child]:
    """Return the worker of each base model, then the API: the order to start in."""
    hosts = [
        Child(
            f"worker of {model.id}", worker_command(model.id, None), worker_environment(environment), stop_seconds=30.0
        )
        for model in settings.base_models()
    ]
    command = [sys.executable, "-m", "app.cli.main", "api", "--host", host, "--port", str(port)]
    return [*hosts, Child("api", command, environment, stop_seconds=15.0)]


def serve(
    data_dir: Annotated[Path | None, typer.Option(help="Where everything is kept; default GRAFT_DATA_DIR.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default GRAFT_HOST.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on; default GRAFT_PORT.")] = None,
) -> None:
    """Serve embedded, all in one, in the foreground."""
    settings = get_settings()
    directory = data_dir or settings.data_dir
    if directory is None:
        raise CliError("name a directory: --data-dir DIRECTORY, or GRAFT_DATA_DIR")
    if settings.database_url or settings.redis_url:
        raise CliError(
            "'graft serve' brings its own database and Redis: unset GRAFT_DATABASE_URL and GRAFT_REDIS_URL, "
            "or run 'graft migrate', 'graft api' and 'graft worker'"
        )
    host, port = host or settings.host, port or settings.port
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with owned_directory(directory):
        check_port_free(host, port)
        _run(settings, directory, host, port, stopping)


def _run(settings: Settings, directory: Path, host: str, port: int, stopping: threading.Event) -> None:
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    url = f"http://{reachable}:{port}"
    environment = os.environ | {"GRAFT_DATA_DIR": str(directory.resolve())}
    valkey = valkey_server(directory)
    store = Child("valkey", valkey.command, os.environ, stop_seconds=5.0, standard_input=valkey.configuration)
    services = _service_children(settings, host, port, environment)
    with ExitStack() as stack:
        stack.enter_context(announced(directory, valkey.url, url))
        for child in [store, *services]:
            stack.callback(supervisor.stop, child)
        supervisor.start(store)
        _prepare_database(f"sqlite:///{directory.resolve() / 'graft.db'}")
        if not supervisor.wait_until(lambda: _answers(valkey.url), [store], stopping, VALKEY_SECONDS):
            return
        for child in services:
            supervisor.start(child)
        if not supervisor.wait_until(lambda: _is_ready(url), [store, *services], stopping, READY_SECONDS):
            return
        typer.echo(f"Graft ready at {url}")
        sys.stdout.flush()
        supervisor.keep_running([store, *services], stopping, _say)
