"""Runs two sides of a comparison in turn, each repetition in a process of its own, and prints medians and the ratio.

A side prints one JSON object `{"rate": tokens per second}` as its last line; its peak memory is the child's own. Graft
runs with the allocator settings its workers are started with. The peer runs twice: as it comes, and with those same
settings, which its users would have to know.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version
from typing import NamedTuple

from app.cli.worker_environment import worker_environment


class Sample(NamedTuple):
    """Tokens per second and peak resident memory in MB of one process."""

    rate: float
    peak_mb: float


def report(rate: float) -> None:
    """Print a side's result for the parent."""
    print(json.dumps({"rate": rate}), flush=True)


def _run(script: str, arguments: list[str], threads: int, *, tuned: bool) -> Sample:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    if tuned:
        environment = worker_environment(environment)
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


def versions(threads: int) -> str:
    """Return what a reader of the figures must know of this machine."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    return f"{packages}; Python {platform.python_version()}; {threads} threads; load {os.getloadavg()[0]:.1f}"


def alternate(
    script: str, case: str, sides: dict[str, list[str]], *, repetitions: int, threads: int, tuned: bool = True
) -> dict[str, float]:
    """Run the sides in turn; print a line for each and return the median rates.

    With `tuned` all have the allocator settings that workers are started with.
    """
    samples: dict[str, list[Sample]] = {side: [] for side in sides}
    for _ in range(repetitions):
        for side, arguments in sides.items():
            samples[side].append(_run(script, arguments, threads, tuned=tuned))
    for side, measured in samples.items():
        spread = ", ".join(f"{s.rate:.1f}" for s in measured)
        print(f"{case}: {side}: runs {spread} tok/s, peak {max(s.peak_mb for s in measured):.0f} MB", flush=True)
    return {side: statistics.median(s.rate for s in measured) for side, measured in samples.items()}


def compare(
    script: str, cases: dict[str, dict[str, list[str]]], *, repetitions: int, threads: int, tuned: bool = True
) -> None:
    """Run each case's sides `peer` and `graft` alternately; print a line a side and the ratios of medians.

    Without `tuned` the peer runs only as it comes.
    """
    print(versions(threads))
    for case, sides in cases.items():
        runs = {
            "peer": (sides["peer"], False),
            "peer, same allocator": (sides["peer"], True),
            "graft": (sides["graft"], True),
        }
        if not tuned:
            del runs["peer, same allocator"]
        samples: dict[str, list[Sample]] = {side: [] for side in runs}
        for _ in range(repetitions):
            for side, (arguments, tuned) in runs.items():
                samples[side].append(_run(script, arguments, threads, tuned=tuned))
        medians = {side: statistics.median(s.rate for s in measured) for side, measured in samples.items()}
        for side, measured in samples.items():
            spread = ", ".join(f"{s.rate:.0f}" for s in measured)
            peak = max(s.peak_mb for s in measured)
            print(f"{case}: {side}: {medians[side]:.1f} tok/s (runs {spread}), peak {peak:.0f} MB", flush=True)
        for side in medians.keys() - {"graft"}:
            print(f"{case}: ratio to {side} {medians['graft'] / medians[side]:.2f}", flush=True)
