"""Runs two sides of a comparison in turn, each repetition in a process of its own, and prints medians and the ratio.

A side prints one JSON object `{"rate": tokens per second}` as its last line; its peak memory is the child's own.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version
from typing import NamedTuple


class Sample(NamedTuple):
    """Tokens per second and peak resident memory in MB of one process."""

    rate: float
    peak_mb: float


def report(rate: float) -> None:
    """Print a side's result for the parent."""
    print(json.dumps({"rate": rate}), flush=True)


def _run(script: str, arguments: list[str], threads: int) -> Sample:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(
        [sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdout is not None
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{script} {' '.join(arguments)} failed with exit code {child.returncode}")
    return Sample(json.loads(output.splitlines()[-1])["rate"], usage.ru_maxrss / 1024)


def compare(script: str, cases: dict[str, dict[str, list[str]]], *, repetitions: int, threads: int) -> None:
    """Run each case's sides `peer` and `graft` alternately; print one line a side and the ratio of medians."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    print(f"{packages}; Python {platform.python_version()}; {threads} threads; load {os.getloadavg()[0]:.1f}")
    for case, sides in cases.items():
        samples: dict[str, list[Sample]] = {side: [] for side in sides}
        for _ in range(repetitions):
            for side, arguments in sides.items():
                samples[side].append(_run(script, arguments, threads))
        medians = {side: statistics.median(s.rate for s in runs) for side, runs in samples.items()}
        for side, runs in samples.items():
            spread = ", ".join(f"{s.rate:.0f}" for s in runs)
            peak = max(s.peak_mb for s in runs)
            print(f"{case}: {side}: {medians[side]:.1f} tok/s (runs {spread}), peak {peak:.0f} MB", flush=True)
        print(f"{case}: ratio {medians['graft'] / medians['peer']:.2f}", flush=True)
