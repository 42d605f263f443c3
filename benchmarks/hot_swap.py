"""How soon a published version answers, and what importing the service costs. A reading of Graft alone, no peer.

Run `python benchmarks/hot_swap.py`. It starts `graft serve` with SmolLM2 in a temporary directory. Each round publishes
a version through `/v1/adapt` (or an upload) and at once streams one token from it; the clock runs from the answer that
reports the new version to the first token. The second request of the round finds the version loaded.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import version

import httpx

from app.cli.demo.client import base_model, connect
from app.cli.demo.server import create_tenant, running_server

ADAPTER = "swapped"


def first_token_ms(client: httpx.Client, expected_version: int) -> float:
    """Return milliseconds to the first streamed text; the answer must name the expected version."""
    body = {
        "model": ADAPTER,
        "messages": [{"role": "user", "content": "Which colour is the sky?"}],
        "max_tokens": 1,
        "temperature": 0,
        "stream": True,
    }
    began = time.perf_counter()
    with client.stream("POST", "/chat/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if '"content"' in line and '"content":""' not in line:
                assert f'"{ADAPTER}@{expected_version}"' in line, line
                return (time.perf_counter() - began) * 1000
    raise AssertionError("the stream ended without a token")


def publish_by_adapt(client: httpx.Client, base: str, number: int) -> int:
    """Train one short text for one epoch with the gate off and return the version it published."""
    body = {
        "model": ADAPTER if number else base,
        "adapter": ADAPTER,
        "text": f"The sky over the station was painted in colour number {number} this morning.",
        "training": {"epochs": 1},
        "rollback": {"enabled": False},
        "wait": 120,
    }
    response = client.post("/adapt", json=body)
    response.raise_for_status()
    return int(response.json()["version"])


def import_seconds() -> float:
    """Return the wall-clock seconds of importing app.main in a fresh interpreter; torch must stay out."""
    code = (
        "import sys, time; start = time.perf_counter(); import app.main; "
        "print(time.perf_counter() - start); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def show(what: str, samples: list[float], unit: str) -> None:
    """Print median, minimum and maximum."""
    median, least, most = statistics.median(samples), min(samples), max(samples)
    print(f"{what}: median {median:.2f} {unit} (min {least:.2f}, max {most:.2f}, n {len(samples)})", flush=True)


def main() -> None:
    """Print import time, then the first token after a publish and the one after it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "fastapi", "sqlalchemy", "redis"))
    print(f"{versions}; load {os.getloadavg()[0]:.1f}")
    show("import app.main", [import_seconds() for _ in range(5)], "s")
    with running_server() as deployment:
        client = connect(deployment.url, create_tenant(deployment, "bench"))
        base = base_model(client)
        swapped, warm = [], []
        for number in range(rounds):
            published = publish_by_adapt(client, base, number)
            swapped.append(first_token_ms(client, published))
            warm.append(first_token_ms(client, published))
    show("publish to first token of the new version", swapped, "ms")
    show("first token of a version already loaded", warm, "ms")


if __name__ == "__main__":
    main()
