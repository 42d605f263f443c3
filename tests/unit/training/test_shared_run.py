"""A whole run shared by two processes over gloo is the run of one process, with half of the moments in each."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from tests.unit.training.processes import COUNT, join_group
from tests.unit.training.tiny import TARGETS, config_of, examples_of, model_of, start_in_mode
from workers.lora.bank import AdapterBank
from workers.training.events import Finished, StepDone
from workers.training.sharding import ShardGroup, optimizer_bytes
from workers.training.trainer import TrainingRun

RUNS: dict[str, dict[str, Any]] = {
    "lora": {"targets": [*TARGETS, "embeddings"], "max_relative_update": 0.02, "gradient_accumulation": 2},
    "full": {"mode": "full", "learning_rate": 0.003, "max_delta": 0.001},
}


def _run(kind: str, group: ShardGroup | None = None) -> tuple[TrainingRun, list[tuple[Any, ...]], Finished]:
    config = config_of(epochs=3, **RUNS[kind])
    model = model_of(torch.float64)
    run = TrainingRun(model, AdapterBank(model), 0, config, start_in_mode(model, config), examples_of(8), group=group)
    spoilt = next(iter(run.state.weights.values()))
    spoilt.register_hook(lambda g: g * float("nan") if run.state.progress.step == 2 and not _is_second(group) else g)
    steps, finished = [], None
    for event in run.slices():
        if isinstance(event, StepDone):
            m = event.metrics
            steps.append((m.loss, m.grad_norm or 0.0, m.clamped, m.scaled, m.skipped))
        finished = event
    assert isinstance(finished, Finished)
    return run, steps, finished


def _is_second(group: ShardGroup | None) -> bool:
    return group is not None and group.shard.index == 1


def _trainer(rank: int, directory: Path, kind: str) -> None:
    run, steps, finished = _run(kind, join_group(rank, directory))
    result = {
        "weights": {name: p.detach() for name, p in run.state.weights.items()},
        "steps": steps,
        "losses": finished.result.losses,
        "bytes": optimizer_bytes(run.state.moments),
    }
    torch.save(result, directory / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", RUNS)
def test_two_processes_make_the_run_of_one(tmp_path: Path, kind: str) -> None:
    """The gradient of one process is not a number at the third step, which both then skip."""
    multiprocessing.spawn(_trainer, (tmp_path, kind), nprocs=COUNT)
    whole, steps, finished = _run(kind)
    ends = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for end in ends:
        for name, weight in whole.state.weights.items():
            assert (end["weights"][name] - weight).norm() <= 1e-6 * weight.norm(), name
        assert end["losses"] == pytest.approx(finished.result.losses, rel=1e-9)
        assert len(end["steps"]) == len(steps)
        for ours, theirs in zip(end["steps"], steps, strict=True):
            assert ours[:2] == pytest.approx(theirs[:2], rel=1e-6)
            assert ours[2:] == theirs[2:]
    assert [step[-1] for step in steps].count(True) == 1
    assert all(torch.equal(ends[1]["weights"][name], weight) for name, weight in ends[0]["weights"].items())
    held = [end["bytes"] for end in ends]
    assert sum(held) == optimizer_bytes(whole.state.moments)
    assert max(held) <= 0.6 * sum(held)
