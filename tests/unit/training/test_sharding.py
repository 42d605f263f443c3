"""Shards of an optimizer step: their union, and two real processes over gloo, are one unsharded step."""

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from tests.unit.training.processes import COUNT, join_group
from workers.training.adamw import AdamWConfig, Moments, StepOutcome, adamw_step
from workers.training.relative_bound import Product, RelativeBound
from workers.training.sharding import Shard, optimizer_bytes

CONFIG = AdamWConfig(0.9, 0.95, 1e-8, 0.1, 0.7, 0.02)
BOUND = RelativeBound(0.02, [Product(f"m{i}.lora_A", f"m{i}.lora_B", 2.0, 1.0) for i in range(4)], {})
STEPS = 6


def _parameters() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    parameters = {}
    for i in range(4):
        parameters[f"m{i}.lora_A"] = torch.randn(2, 6, generator=generator)
        parameters[f"m{i}.lora_B"] = torch.randn(6, 2, generator=generator)
    return parameters


def _gradients(step: int, part: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * part + step)
    gradients = {name: torch.randn(p.shape, generator=generator) for name, p in _parameters().items()}
    if step == 2:
        del gradients["m1.lora_A"]
    if step == 4:
        gradients["m3.lora_B"][0, 0] = math.nan
    return gradients


def _whole(bound: RelativeBound | None, parts: int = 1) -> tuple[dict[str, torch.Tensor], list[StepOutcome]]:
    parameters, moments = _parameters(), dict[str, Moments]()
    outcomes = []
    for step in range(STEPS):
        gradients = _gradients(step)
        for part in range(1, parts):
            for name, gradient in _gradients(step, part).items():
                gradients[name] = gradients[name] + gradient
        outcomes.append(adamw_step(parameters, gradients, moments, learning_rate=0.05, config=CONFIG, bound=bound))
    return parameters, outcomes


@pytest.mark.parametrize("count", [1, 2, 3, 11])
def test_the_union_of_bare_shards_is_one_unsharded_step_bit_for_bit(count: int) -> None:
    expected, outcomes = _whole(None)
    shards = [(Shard(i, count), dict[str, Moments]()) for i in range(count)]
    parameters = _parameters()
    for step in range(STEPS):
        before, gradients = {n: p.clone() for n, p in parameters.items()}, _gradients(step)
        for shard, moments in shards:
            mine = {n: p.clone() for n, p in before.items()}
            outcome = adamw_step(mine, gradients, moments, learning_rate=0.05, config=CONFIG, exchange=shard)
            assert outcome.applied == outcomes[step].applied
            assert outcome.grad_norm == outcomes[step].grad_norm or not outcome.applied
            for i, name in enumerate(mine):
                if i % count == shard.index:
                    parameters[name] = mine[name]
                else:
                    assert torch.equal(mine[name], before[name]), "a shard steps what it owns and nothing else"
    assert all(torch.equal(parameters[name], p) for name, p in expected.items())
    held = [set(moments) for _, moments in shards]
    assert set().union(*held) == set(expected)
    assert sum(map(len, held)) == len(expected)


def test_a_shard_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="shard 2 is none of 0 to 1"):
        Shard(2, 2)


def _trainer(rank: int, directory: Path, bound: RelativeBound | None) -> None:
    group = join_group(rank, directory)
    parameters, moments, outcomes = _parameters(), dict[str, Moments](), []
    for step in range(STEPS):
        gradients = group.sum_gradients(parameters, _gradients(step, part=rank))
        outcomes.append(
            adamw_step(parameters, gradients, moments, learning_rate=0.05, config=CONFIG, bound=bound, exchange=group)
        )
    torch.save(
        {
            "parameters": parameters,
            "outcomes": [(o.grad_norm, o.clamped, o.applied, o.scaled) for o in outcomes],
            "moments": sorted(moments),
            "bytes": optimizer_bytes(moments),
        },
        directory / f"{rank}.pt",
    )
    dist.destroy_process_group()


@pytest.mark.parametrize("bound", [None, BOUND], ids=["plain", "relative bound"])
def test_two_processes_over_gloo_equal_one_and_hold_half_the_moments_each(
    tmp_path: Path, bound: RelativeBound | None
) -> None:
    """Each computes half of the gradient; the bounded product has one factor on either side."""
    multiprocessing.spawn(_trainer, (tmp_path, bound), nprocs=COUNT)
    ends = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    expected, outcomes = _whole(bound, parts=2)
    whole = sum(2 * p.nbytes for p in expected.values())
    assert [o.applied for o in outcomes] == [True, True, True, True, False, True]
    assert any(o.clamped > 0 for o in outcomes)
    for end in ends:
        for name, weight in expected.items():
            assert torch.equal(end["parameters"][name], weight), name
        for (norm, clamped, applied, scaled), one in zip(end["outcomes"], outcomes, strict=True):
            assert (applied, scaled) == (one.applied, one.scaled)
            if applied:
                assert norm == pytest.approx(one.grad_norm, rel=1e-12)
                assert clamped == one.clamped
        assert end["bytes"] == whole / 2
    assert set(ends[0]["moments"]).isdisjoint(ends[1]["moments"])
    if bound:
        assert any(o.scaled for o in outcomes if o.applied)
