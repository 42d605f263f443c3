"""Memory for training: what runs are estimated to need against what they hold, and who may come beside whom."""

from typing import Any

import pytest
import torch
from torch import Tensor

from app.contracts.training import JobConfig
from tests.unit.training.tiny import config_of
from tests.unit.training.tiny_families import FAMILY_NAMES, describe, family_model, new_adapter, targets_of
from workers.lora.adapter import count_parameters
from workers.lora.bank import AdapterBank
from workers.training.dataset import Window
from workers.training.errors import TrainingError
from workers.training.memory import TrainingMemory, pass_bytes, run_bytes, trained_scalars
from workers.training.shared_pass import run_pass
from workers.training.work import Work

SMALL, LARGE = config_of(rank=1, targets=["q_proj"]), config_of(rank=8)


def _configs(family: str) -> list[JobConfig]:
    targets = targets_of(family)
    modes = [config_of(mode="wsla"), config_of(mode="full")]
    return [*(config_of(rank=rank, targets=[target]) for rank in (1, 50) for target in targets), *modes]


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_every_scalar_that_a_run_trains_is_counted(family: str) -> None:
    model = family_model(family)
    for config in (*_configs(family), config_of(rank=3, targets=targets_of(family))):
        assert trained_scalars(describe(model), config) == count_parameters(new_adapter(model, config)), config


def test_a_target_that_the_base_lacks_is_for_the_run_to_report() -> None:
    info = describe(family_model("llama"))
    assert trained_scalars(info, config_of(targets=["q_proj", "in_proj"])) == trained_scalars(
        info, config_of(targets=["q_proj"])
    )


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pass_keeps_no_more_for_its_way_back_than_was_planned(family: str, dtype: torch.dtype) -> None:
    model, length = family_model(family, dtype), 60
    bank = AdapterBank(model)
    bank.load(0, new_adapter(model, config_of(targets=targets_of(family), rank=2)), trainable=True)
    held = {weight.base.untyped_storage().data_ptr() for weight in model.weights().values()}
    kept: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    window = Window(tuple(range(30)) * 2, (0, *[1] * (length - 1)))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for kind in run_pass(model, [Work(0, (window, window), 0.1)]):
            if kind == "head":
                break
    total = sum(size for place, (size, _) in kept.items() if place not in held)
    assert 0 < total <= pass_bytes(model, 2 * length)


def _memory(**room: Any) -> TrainingMemory:
    return TrainingMemory(describe(family_model("llama")), **room)


def test_runs_come_while_their_estimates_fit_and_leave_their_room_to_others() -> None:
    info = describe(family_model("llama"))
    small, large = run_bytes(info, SMALL), run_bytes(info, LARGE)
    memory = _memory(capacity=large + small)
    assert memory.fits(LARGE)
    memory.take("a", LARGE)
    assert memory.fits(SMALL)
    memory.take("b", SMALL)
    assert memory.taken == large + small
    assert not memory.fits(SMALL)
    memory.free("a")
    memory.free("unknown")
    assert memory.taken == small
    assert memory.fits(LARGE)


def test_one_that_fits_nowhere_may_come_alone_and_is_told() -> None:
    info = describe(family_model("llama"))
    memory = _memory(capacity=run_bytes(info, LARGE) - 1)
    assert memory.fits(LARGE)
    with pytest.raises(TrainingError, match=r"trains 4,480 scalars.*choose a lower rank") as caught:
        memory.require(LARGE)
    assert caught.value.code == "insufficient_memory"
    memory.require(SMALL)
    memory.take("a", SMALL)
    assert not memory.fits(LARGE)


def test_without_a_capacity_everything_fits() -> None:
    memory = _memory(capacity=None)
    memory.take("a", LARGE)
    memory.require(LARGE)
    assert memory.fits(LARGE)
