"""Resumes a run from each snapshot in a directory and prints a digest of how each ended; a process of its own."""

import hashlib
import json
import sys
from collections.abc import Collection
from pathlib import Path

import torch

from tests.unit.training.tiny import config_of, examples_of, run_of
from workers.training.events import Finished
from workers.training.snapshot import Snapshot
from workers.training.trainer import TrainingRun

DTYPES = ["float32", "bfloat16"]


def long_run(dtype: str, *, spoil: Collection[int] = ()) -> TrainingRun:
    """Return a run of two epochs of five steps with accumulation, held-out data and a trust region.

    The gradient is not a number at the steps `spoil`.
    """
    config = config_of(batch_size=2, gradient_accumulation=2, max_delta=0.005)
    run, _, _ = run_of(config, examples_of(20), dtype=getattr(torch, dtype))
    weight = run.state.weights["model.layers.0.mlp.up_proj.lora_A"]
    weight.register_hook(lambda g: g * float("nan") if run.state.progress.step + 1 in spoil else g)
    return run


def end_digest(finished: Finished) -> str:
    """Return a digest of all of a run's end but its duration."""
    assert finished.adapter is not None
    digest = hashlib.sha256(finished.result.model_copy(update={"duration_ms": 0}).model_dump_json().encode())
    for name, factors in finished.adapter.tensors.items():
        digest.update(name.encode() + b"".join(f.numpy().tobytes() for f in factors))
    return digest.hexdigest()


def main() -> None:
    """Read `DTYPE DIRECTORY` from the command line."""
    dtype, directory = sys.argv[1], Path(sys.argv[2])
    for step in sorted(int(path.stem) for path in directory.glob("*.json")):
        run = long_run(dtype)
        manifest = json.loads((directory / f"{step}.json").read_text())
        run.restore(Snapshot(step, (directory / f"{step}.safetensors").read_bytes(), manifest))
        *_, finished = run.slices()
        assert isinstance(finished, Finished)
        sys.stdout.write(end_digest(finished) + "\n")


if __name__ == "__main__":
    main()
