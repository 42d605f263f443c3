"""Children are restarted when they die, later each time, and stopped even when they do not want to."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from app.cli import supervisor
from app.cli.errors import CliError
from app.cli.supervisor import LONGEST_BACKOFF, STEADY_SECONDS, Child


def python(code: str, *, stop_seconds: float = 5.0, standard_input: bytes = b"") -> Child:
    """Return a child that runs a line of Python."""
    return Child("worker", [sys.executable, "-c", code], os.environ, stop_seconds, standard_input)


def dead(child: Child) -> Child:
    """Start the child and wait for its end."""
    supervisor.start(child)
    assert child.process is not None
    child.process.wait()
    return child


def started(folder: Path, handler: str) -> Child:
    """Start a child that handles SIGTERM its own way, and wait until it does."""
    mark = folder / "handles"
    code = f"import pathlib, signal, sys, time; {handler}; pathlib.Path({str(mark)!r}).touch(); time.sleep(60)"
    child = python(code, stop_seconds=1.0)
    supervisor.start(child)
    assert supervisor.wait_until(mark.exists, [child], threading.Event(), 10.0)
    return child


def test_standard_input_reaches_the_child(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    dead(python(f"import sys, pathlib; pathlib.Path({str(copy)!r}).write_text(sys.stdin.read())", standard_input=b"hi"))
    assert copy.read_text() == "hi"


def test_dead_child_waits_longer_each_time_and_is_restarted() -> None:
    child, said = dead(python("raise SystemExit(3)")), []
    delays = []
    for _ in range(8):
        before = time.monotonic()
        supervisor.revive(child, said.append)
        assert child.process is None
        delays.append(round(child.restart_at - before, 1))
        child.restart_at = 0.0
        supervisor.revive(child, said.append)
        assert child.process is not None
        child.process.wait()
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_BACKOFF, LONGEST_BACKOFF, LONGEST_BACKOFF]
    assert said[0] == "worker ended with exit code 3; restarting in 1.0 s"


def test_steady_child_is_restarted_at_once() -> None:
    child = dead(python("raise SystemExit(1)"))
    child.failures, child.started_at = 5, time.monotonic() - STEADY_SECONDS - 1
    supervisor.revive(child, lambda _line: None)
    assert child.failures == 0
    assert child.process is not None
    supervisor.stop(child)


def test_stop_lets_a_child_finish(tmp_path: Path) -> None:
    child = started(tmp_path, "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))")
    supervisor.stop(child)
    assert supervisor.exit_code(child) == 7


def test_stop_kills_a_child_that_will_not_end(tmp_path: Path) -> None:
    child = started(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    supervisor.stop(child)
    assert supervisor.exit_code(child) == -signal.SIGKILL


def test_death_while_starting_ends_the_start() -> None:
    child = dead(python("raise SystemExit(4)"))
    with pytest.raises(CliError, match="worker ended with exit code 4 while starting"):
        supervisor.wait_until(lambda: False, [child], threading.Event(), 5.0)


def test_never_ready_ends_the_start() -> None:
    with pytest.raises(CliError, match="not ready after 0 s"):
        supervisor.wait_until(lambda: False, [], threading.Event(), 0.2)


def test_asking_to_stop_ends_the_wait() -> None:
    stopping = threading.Event()
    stopping.set()
    assert supervisor.wait_until(lambda: False, [], stopping, 5.0) is False


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_children_of_a_killed_supervisor_die_with_it() -> None:
    code = (
        "import os, sys, time\nfrom app.cli import supervisor\n"
        "child = supervisor.Child('c', [sys.executable, '-c', 'import time; time.sleep(60)'], os.environ, 1.0)\n"
        "supervisor.start(child)\nprint(child.process.pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child_id = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 5
    while _running(child_id):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.02)


def _running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
