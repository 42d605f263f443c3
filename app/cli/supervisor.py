"""Keeps a few child processes running: starts them in order, restarts the dead with back-off, stops them in turn.

Knows nothing of what the children do.
"""

import ctypes
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from app.cli.errors import CliError

LONGEST_BACKOFF = 30.0
STEADY_SECONDS = 60.0
"""A child that ran this long has recovered: its next restart is immediate again."""
POLL_SECONDS = 0.25
PR_SET_PDEATHSIG = 1


@dataclass
class Child:
    """One process to keep running. `stop_seconds` is its time to end by itself before it is killed."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    stop_seconds: float
    standard_input: bytes = b""
    process: subprocess.Popen[bytes] | None = None
    failures: int = 0
    started_at: float = 0.0
    restart_at: float = field(default=0.0)


def _die_with_parent() -> None:
    """Linux: have the kernel end this child when its parent is killed, so that no orphan keeps a port or a job."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def start(child: Child) -> None:
    """Start the child, in its own session so that Ctrl-C reaches the supervisor alone; its output goes to stderr."""
    child.started_at = time.monotonic()
    child.process = subprocess.Popen(  # noqa: S603 - our own commands, no shell
        child.command,
        env=dict(child.environment),
        stdin=subprocess.PIPE,
        stdout=sys.stderr,
        start_new_session=True,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one thread only
    )
    assert child.process.stdin is not None
    child.process.stdin.write(child.standard_input)
    child.process.stdin.close()


def exit_code(child: Child) -> int | None:
    """Return the child's exit code, or None while it runs or waits for its restart."""
    return child.process.poll() if child.process else None


def revive(child: Child, say: Callable[[str], None]) -> None:
    """Restart the child if it is dead and its back-off is over."""
    now = time.monotonic()
    code = exit_code(child)
    if code is not None:
        child.process = None
        child.failures = 0 if now - child.started_at > STEADY_SECONDS else child.failures + 1
        delay = min(LONGEST_BACKOFF, 0.5 * 2**child.failures) if child.failures else 0.0
        child.restart_at = now + delay
        say(f"{child.name} ended with exit code {code}; restarting in {delay:.1f} s")
    if child.process is None and now >= child.restart_at:
        start(child)


def stop(child: Child) -> None:
    """Ask the child to end, wait, and kill it if it does not."""
    if child.process is None or child.process.poll() is not None:
        return
    child.process.terminate()
    try:
        child.process.wait(child.stop_seconds)
    except subprocess.TimeoutExpired:
        child.process.kill()
        child.process.wait()


def wait_until(ready: Callable[[], bool], children: list[Child], stopping: threading.Event, timeout: float) -> bool:
    """Wait until `ready()`; return False when asked to stop. Raises CliError when a child dies or time is up."""
    deadline = time.monotonic() + timeout
    while not ready():
        if stopping.wait(POLL_SECONDS):
            return False
        for child in children:
            code = exit_code(child)
            if code is not None:
                raise CliError(f"{child.name} ended with exit code {code} while starting: its messages are above")
        if time.monotonic() > deadline:
            raise CliError(f"not ready after {timeout:.0f} s: see the messages above, and /readyz for what is missing")
    return True


def keep_running(children: list[Child], stopping: threading.Event, say: Callable[[str], None]) -> None:
    """Restart dead children until asked to stop."""
    while not stopping.wait(0.5):
        for child in children:
            revive(child, say)
