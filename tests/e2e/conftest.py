"""One real server for all end-to-end tests: `graft serve` with SmolLM2, a tenant, and one finished fine-tune."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from openai.types.fine_tuning import FineTuningJob

EXAMPLES = Path(__file__).parents[2] / "examples"
BASE = "smollm2-135m-instruct"
ADAPTER = "quorvex"
EPOCHS = 6
GRAFT = [sys.executable, "-m", "app.cli.main"]
JOB_SECONDS = 280.0


@dataclass(frozen=True)
class Server:
    """A running server and the environment by which the command line finds it."""

    url: str
    data_dir: Path
    environment: dict[str, str]

    def graft(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command against this server."""
        return subprocess.run([*GRAFT, *arguments], env=self.environment, capture_output=True, text=True, check=False)

    def new_tenant(self, name: str) -> str:
        """Create a tenant and return its key."""
        made = self.graft("tenants", "create", name, "--json")
        assert made.returncode == 0, made.stderr
        return str(json.loads(made.stdout)["api_key"])

    def openai(self, api_key: str) -> OpenAI:
        """Return the official client for a key."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=120.0)


@contextmanager
def running_server(folder: Path, config: str = "", **settings: str) -> Iterator[Server]:
    """Start `graft serve` in an empty folder; at the end ask it to stop and check that it leaves nothing behind.

    `config` is the text of graft.toml; without one the model of the wheel is served. `settings` are GRAFT_ variables.
    """
    data_dir, log = folder / "data", folder / "serve.log"
    if config:
        (folder / "graft.toml").write_text(config)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GRAFT_")}
    environment |= {"GRAFT_DATA_DIR": str(data_dir), "GRAFT_CONFIG_FILE": str(folder / "graft.toml")}
    environment |= settings
    command = [*GRAFT, "serve", "--data-dir", str(data_dir), "--port", str(port)]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        assert ready == f"Graft ready at http://127.0.0.1:{port}\n", log.read_text()[-4000:]
        yield Server(f"http://127.0.0.1:{port}", data_dir, environment)
    finally:
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert rest == ""
    assert not (data_dir / "deployment.json").exists()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the wheel's model."""
    with running_server(tmp_path_factory.mktemp("e2e")) as server:
        yield server


@pytest.fixture(scope="session")
def api_key(server: Server) -> str:
    """Return the key of the tenant that most tests speak as."""
    return server.new_tenant("acme")


@pytest.fixture(scope="session")
def client(server: Server, api_key: str) -> OpenAI:
    """Return the official client of that tenant."""
    return server.openai(api_key)


@pytest.fixture(scope="session")
def rest(server: Server, api_key: str) -> Iterator[httpx.Client]:
    """Return a plain HTTP client of that tenant, for the routes that OpenAI does not have."""
    headers = {"Authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=f"{server.url}/v1", headers=headers, timeout=180.0) as http:
        yield http


@pytest.fixture(scope="session")
def training_file(client: OpenAI, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Upload the examples of two facts: the first 12 lines."""
    path = tmp_path_factory.mktemp("files") / "facts.jsonl"
    lines = (EXAMPLES / "support_chats.jsonl").read_text().splitlines(keepends=True)[:12]
    path.write_text("".join(lines))
    return client.files.create(file=path, purpose="fine-tune").id


@pytest.fixture(scope="session")
def validation_file(client: OpenAI) -> str:
    """Upload the held-out examples."""
    return client.files.create(file=EXAMPLES / "support_chats_validation.jsonl", purpose="fine-tune").id


@pytest.fixture(scope="session")
def finished(client: OpenAI) -> Callable[[str], FineTuningJob]:
    """Return a function that waits for a job's end."""

    def wait(job_id: str) -> FineTuningJob:
        deadline = time.monotonic() + JOB_SECONDS
        while True:
            job = client.fine_tuning.jobs.retrieve(job_id)
            if job.status in ("succeeded", "failed", "cancelled"):
                return job
            assert time.monotonic() < deadline, job
            time.sleep(0.25)

    return wait


@pytest.fixture(scope="session")
def taught(
    client: OpenAI, training_file: str, validation_file: str, finished: Callable[[str], FineTuningJob]
) -> FineTuningJob:
    """Return a fine-tune that has ended well."""
    job = client.fine_tuning.jobs.create(
        model=BASE,
        training_file=training_file,
        validation_file=validation_file,
        seed=7,
        metadata={"team": "support"},
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": EPOCHS}}},
        extra_body={"adapter": ADAPTER, "lora": {"rank": 16, "alpha": 32}},
        extra_headers={"Idempotency-Key": "teach-once"},
    )
    job = finished(job.id)
    assert job.status == "succeeded", job.error
    return job


@pytest.fixture(scope="session")
def published(rest: httpx.Client, taught: FineTuningJob) -> dict[str, bytes]:
    """Return the two PEFT files of the taught version."""
    names = ("adapter_config.json", "adapter_model.safetensors")
    path = f"/adapters/{ADAPTER}/versions/1/download"
    return {name: rest.get(path, params={"file": name}).raise_for_status().content for name in names}


@pytest.fixture
def new_adapter(rest: httpx.Client, published: dict[str, bytes]) -> Callable[[str], dict[str, object]]:
    """Return a function that uploads the taught version under a name of the caller's."""

    def upload(name: str) -> dict[str, object]:
        files = {
            "config": ("adapter_config.json", published["adapter_config.json"]),
            "weights": ("adapter_model.safetensors", published["adapter_model.safetensors"]),
        }
        answer = rest.post("/adapters", data={"name": name, "base_model": BASE}, files=files)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    return upload
