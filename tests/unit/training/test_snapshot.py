"""Snapshots: any of them resumes to the same end bit for bit; a damaged or foreign one is refused."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.unit.training.resume import DTYPES, end_digest, long_run
from tests.unit.training.tiny import config_of, examples_of, run_of
from workers.training.errors import SnapshotError
from workers.training.events import EpochDone, Finished, StepDone
from workers.training.snapshot import Snapshot, manifest_sha256
from workers.training.trainer import TrainingRun

ROOT = Path(__file__).parents[3]


def _unbroken(dtype: str, *, spoil: Collection[int] = ()) -> tuple[list[Snapshot], str]:
    run = long_run(dtype, spoil=spoil)
    snapshots, finished = [], None
    for event in run.slices():
        if isinstance(event, StepDone):
            snapshots.append(run.snapshot())
        finished = event
    assert isinstance(finished, Finished)
    return snapshots, end_digest(finished)


def _through_json(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, manifest=json.loads(json.dumps(snapshot.manifest)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_steps_snapshot_ends_bit_identical_in_a_fresh_process(dtype: str, tmp_path: Path) -> None:
    snapshots, expected = _unbroken(dtype)
    assert [s.step for s in snapshots] == list(range(1, 11))
    for s in snapshots:
        (tmp_path / f"{s.step}.safetensors").write_bytes(s.tensors)
        (tmp_path / f"{s.step}.json").write_text(json.dumps(s.manifest))
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.training.resume", dtype, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [expected] * 10


@pytest.mark.parametrize(("spoil", "set_back"), [({2, 3, 7}, 0), ({4, 5, 6, 7}, 1)])
def test_a_run_with_skipped_steps_resumes_with_its_counts(
    spoil: set[int], set_back: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it goes back between two snapshots, to a state that is neither the start nor the last."""
    monkeypatch.setattr("workers.training.trainer.GOOD_EVERY_STEPS", 2)
    snapshots, expected = _unbroken("float32", spoil=spoil)
    assert [s.step for s in snapshots] == list(range(1, 11))
    for snapshot in snapshots:
        run = long_run("float32", spoil=spoil)
        run.restore(_through_json(snapshot))
        *_, finished = run.slices()
        assert isinstance(finished, Finished)
        assert (run.state.progress.skipped, run.state.progress.set_back) == (len(spoil), set_back)
        assert end_digest(finished) == expected


def test_the_epoch_that_ended_with_the_snapshot_is_reported_again() -> None:
    run = long_run("float32")
    for event in run.slices():
        if isinstance(event, StepDone) and event.metrics.step == 5:
            break
    snapshot = run.snapshot()
    again = long_run("float32")
    again.restore(snapshot)
    first = next(event for event in again.slices() if event is not None)
    assert isinstance(first, EpochDone)
    assert (first.epoch, first.step) == (1, 5)


def test_a_resumed_run_judges_retention_against_the_same_start() -> None:
    def run() -> TrainingRun:
        return run_of(config_of(retention_tolerance=9.0), examples_of(6), retention=examples_of(2, seed=9))[0]

    unbroken, resumed = run(), run()
    for event in unbroken.slices():
        if isinstance(event, StepDone) and event.metrics.step == 2:
            resumed.restore(_through_json(unbroken.snapshot()))
    *_, finished = resumed.slices()
    assert isinstance(event, Finished)
    assert isinstance(finished, Finished)
    assert end_digest(finished) == end_digest(event)


def _one_snapshot() -> tuple[TrainingRun, Snapshot]:
    run, _, _ = run_of(config_of(), examples_of(6))
    next(event for event in run.slices() if isinstance(event, StepDone))
    fresh, _, _ = run_of(config_of(), examples_of(6))
    return fresh, run.snapshot()


def _resigned(snapshot: Snapshot, **changes: object) -> Snapshot:
    manifest = snapshot.manifest | changes
    manifest["manifest_sha256"] = manifest_sha256(manifest)
    return replace(snapshot, manifest=manifest)


def test_every_kind_of_damage_is_refused_and_leaves_the_run_as_it_was() -> None:
    run, good = _one_snapshot()
    progress = good.manifest["progress"]
    assert isinstance(progress, dict)
    flipped = bytearray(good.tensors)
    flipped[len(flipped) // 2] ^= 1
    junk = b"junk"
    damaged = {
        "do not match their SHA-256": replace(good, tensors=bytes(flipped)),
        "tensors do not match": replace(good, tensors=good.tensors[:-1]),
        "manifest does not match": replace(good, manifest=good.manifest | {"progress": progress | {"step": 2}}),
        "expected graft-training-snapshot version 1": _resigned(good, format_version=2),
        "is None version None": replace(good, manifest={}),
        "another configuration": _resigned(good, run_id="0" * 64),
        "progress": _resigned(good, progress=progress | {"epoch": "one"}),
        "is named step 9 but holds step 1": replace(good, step=9),
        "tensors: ": _resigned(replace(good, tensors=junk), tensors_sha256=hashlib.sha256(junk).hexdigest()),
    }
    before = {n: p.detach().clone() for n, p in run.state.weights.items()}
    for message, snapshot in damaged.items():
        with pytest.raises(SnapshotError, match=message):
            run.restore(snapshot)
    assert all(torch.equal(p, before[n]) for n, p in run.state.weights.items())
    assert run.state.progress.step == 0
    run.restore(good)
    assert run.state.progress.step == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda: run_of(config_of(seed=8), examples_of(6))[0],
        lambda: run_of(config_of(learning_rate=0.02), examples_of(6))[0],
        lambda: run_of(config_of(), examples_of(7))[0],
        lambda: run_of(config_of(), examples_of(6), examples_of(2))[0],
        lambda: run_of(config_of(), examples_of(6), retention=examples_of(2))[0],
        lambda: run_of(config_of(), examples_of(6), dtype=torch.bfloat16)[0],
    ],
    ids=["seed", "learning-rate", "data", "validation", "retention", "dtype"],
)
def test_the_snapshot_of_another_run_is_refused(other: object) -> None:
    _, snapshot = _one_snapshot()
    assert callable(other)
    with pytest.raises(SnapshotError, match="belongs to a run with another configuration, data or start"):
        other().restore(snapshot)


def test_snapshot_bytes_are_deterministic_and_exact() -> None:
    run, snapshot = _one_snapshot()
    run.restore(snapshot)
    again = run.snapshot()
    assert again.tensors == snapshot.tensors
    assert again.manifest == snapshot.manifest
