"""The demo's REST calls, one function a call. Knows URLs and bodies; prints nothing."""

from pathlib import Path
from typing import Any

import httpx

from app.cli.errors import CliError

FINISHED = {"succeeded", "failed", "cancelled"}
ADAPT_WAIT_SECONDS = 120


def connect(url: str, api_key: str) -> httpx.Client:
    """Return a client that speaks as one tenant."""
    headers = {"Authorization": f"Bearer {api_key}"}
    return httpx.Client(base_url=f"{url}/v1", headers=headers, timeout=ADAPT_WAIT_SECONDS + 60, trust_env=False)


def _object(response: httpx.Response) -> dict[str, Any]:
    if response.is_error:
        raise CliError(f"{response.request.method} {response.request.url.path}: {response.status_code} {response.text}")
    answer: dict[str, Any] = response.json()
    return answer


def base_model(client: httpx.Client) -> str:
    """Return the id of the first base model."""
    return str(_object(client.get("/models"))["data"][0]["id"])


def ask(client: httpx.Client, model: str, question: str) -> str:
    """Return the model's most likely answer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 48,
    }
    return str(_object(client.post("/chat/completions", json=body))["choices"][0]["message"]["content"]).strip()


def upload(client: httpx.Client, path: Path) -> str:
    """Upload a training file and return its id."""
    with path.open("rb") as data:
        response = client.post("/files", data={"purpose": "fine-tune"}, files={"file": (path.name, data)})
    return str(_object(response)["id"])


def create_job(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """Start a fine-tune and return the job."""
    return _object(client.post("/fine_tuning/jobs", json=body))


def job(client: httpx.Client, job_id: str) -> dict[str, Any]:
    """Return the job as it is now."""
    return _object(client.get(f"/fine_tuning/jobs/{job_id}"))


def newest_metrics(client: httpx.Client, job_id: str) -> dict[str, Any] | None:
    """Return the metrics of the newest optimizer step, or None before the first."""
    events = _object(client.get(f"/fine_tuning/jobs/{job_id}/events", params={"limit": 10}))["data"]
    return next((event["data"] for event in events if event["type"] == "metrics"), None)


def adapt(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """Train on one text and return how it went."""
    return _object(client.post("/adapt", json=body | {"wait": ADAPT_WAIT_SECONDS}))


def active_version(client: httpx.Client, adapter: str) -> int:
    """Return the number of the version that answers now."""
    return int(_object(client.get(f"/adapters/{adapter}"))["active_version"])
