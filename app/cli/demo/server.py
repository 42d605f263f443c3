"""Starts `graft serve` in a temporary directory as a user would, and makes a tenant through the command line."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.cli.errors import CliError

GRAFT = [sys.executable, "-m", "app.cli.main"]
STOP_SECONDS = 60.0


@dataclass(frozen=True)
class Deployment:
    """A running server and the environment by which commands find it."""

    url: str
    environment: dict[str, str]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_server() -> Iterator[Deployment]:
    """Yield a ready server with its own empty data; stop it and delete the data at the end, SIGTERM included."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRAFT_")}
    with tempfile.TemporaryDirectory(prefix="graft-demo-") as directory:
        data_dir, log_path = Path(directory) / "data", Path(directory) / "serve.log"
        environment = inherited | {
            "GRAFT_DATA_DIR": str(data_dir),
            "GRAFT_CONFIG_FILE": str(Path(directory) / "graft.toml"),
        }
        with log_path.open("wb") as log:
            command = [*GRAFT, "serve", "--port", str(_free_port())]
            server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: S603
        try:
            assert server.stdout is not None
            ready = server.stdout.readline()
            if not ready.startswith("Graft ready at "):
                raise CliError(f"the server did not start; its last words:\n{log_path.read_text()[-2000:]}")
            yield Deployment(ready.removeprefix("Graft ready at ").strip(), environment)
        finally:
            server.terminate()
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def create_tenant(deployment: Deployment, name: str) -> str:
    """Create a tenant and return its API key."""
    command = [*GRAFT, "tenants", "create", name, "--json"]
    done = subprocess.run(command, env=deployment.environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise CliError(f"could not create a tenant: {done.stderr.strip()}")
    return str(json.loads(done.stdout)["api_key"])
