"""A client that stops reading: what is not sent waits in Redis, within a bound, and nobody else waits for it."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis
import uvicorn

from app.bus import names
from app.main import create_app
from tests.tiny_base import BASE

CHOICES, TOKENS = 16, 400
SENT_AHEAD = 2500
"""Events that may be on their way to the client: the buffers of both sockets, of the server and of the service."""


@pytest.fixture
def port(api: Any) -> Iterator[int]:
    """The application behind uvicorn, with small send buffers."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    server = uvicorn.Server(uvicorn.Config(create_app(api.settings), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline, "uvicorn did not start"
        time.sleep(0.01)
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()


def ask(api: Any, port: int) -> Any:
    """Ask for many tokens and return the connection's stream, of which nothing is read yet."""
    body = json.dumps({"model": BASE, "prompt": "a", "n": CHOICES, "max_tokens": TOKENS, "stream": True})
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect(("127.0.0.1", port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\nConnection: close\r\n"
    client.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    stream = client.makefile("rb")
    client.close()  # as soon as the stream is, too
    return stream


def quick(api: Any, port: int) -> str:
    """Return what another client gets from the same server."""
    url, headers = f"http://127.0.0.1:{port}/v1/completions", {"Authorization": f"Bearer {api.key}"}
    answer = httpx.post(url, headers=headers, json={"model": BASE, "prompt": "b", "max_tokens": 5}, timeout=60)
    return str(answer.json()["choices"][0]["text"])


def events_of(stream: Any) -> list[Any]:
    """Read to the end; the JSON of every event, and `[DONE]`."""
    lines = [line.removeprefix(b"data: ").strip() for line in stream if line.startswith(b"data: ")]
    return ["[DONE]" if line == b"[DONE]" else json.loads(line) for line in lines]


def test_a_client_that_stops_reading_gets_all_its_tokens_later(api: Any, port: int, worker: Any) -> None:
    worker.reply = "abcdefgh" * (TOKENS // 8)
    with ask(api, port) as stream:
        worker.wait_until(lambda: worker.requests, seconds=60)
        [slow] = worker.requests
        for _ in range(3):
            assert quick(api, port) == "abcde"
        with redis.Redis.from_url(api.settings.redis_url) as bus:
            assert bus.xlen(names.events(slow.id)) > CHOICES * TOKENS - SENT_AHEAD
        *chunks, done = events_of(stream)
        assert done == "[DONE]"
        texts = [""] * CHOICES
        for chunk in chunks:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
        assert texts == [worker.reply] * CHOICES


def test_a_client_that_reads_too_slowly_is_told(
    api: Any, port: int, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.bus.token_streams.MOST_UNREAD_BYTES", 200_000)
    worker.reply = "abcdefgh" * (TOKENS // 8)
    with ask(api, port) as stream:
        worker.wait_until(lambda: worker.requests, seconds=60)
        [slow] = worker.requests
        with redis.Redis.from_url(api.settings.redis_url) as bus:
            worker.wait_until(lambda: bus.exists(names.abort(slow.id)), seconds=60)
            assert bus.memory_usage(names.events(slow.id)) < 220_000
        *chunks, last = events_of(stream)
        assert last["error"]["code"] == "read_too_slowly"
        assert 0 < len(chunks) < CHOICES * TOKENS
        assert quick(api, port) == "abcde"
