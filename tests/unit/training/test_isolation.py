"""Whatever happens to one run of a pass happens to it alone: the runs beside it end as they do by themselves."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.training.mixtures import Plan, Trace, assert_same, follow, new_run, plan_of, run_alone
from tests.unit.training.tiny_families import FAMILY_NAMES, family_model, targets_of
from workers.lora.bank import AdapterBank
from workers.models.language_model import LanguageModel
from workers.training.dataset import Window
from workers.training.errors import TrainingError
from workers.training.pool import RunPool
from workers.training.trainer import TrainingRun
from workers.training.work import Work, Working

STEPS = 12
CULPRIT = 7
TOKENS_PER_PASS = 200
alone = cache(run_alone)


@cache
def _plans(family: str) -> tuple[Plan, ...]:
    """Two runs; the second has gradients of an earlier work when every other pass begins."""
    usual = {"batch_size": 2, "learning_rate": 2e-3, "enabled": False, "leaves": STEPS}
    return (
        plan_of(targets=(*targets_of(family)[::2],), rank=3, **usual),
        plan_of(mode="wsla", gradient_accumulation=2, **usual),
    )


class Beside:
    """A pool with the two runs, and one more that something happens to."""

    def __init__(self, family: str) -> None:
        self.family, self.model = family, family_model(family)
        self.bank = AdapterBank(self.model)
        self.pool = RunPool(self.model, self.bank.parameters, tokens_per_pass=TOKENS_PER_PASS)
        self.errors: list[Exception] = []
        """What the one run met."""
        self.largest = 0
        """Tokens of the largest pass."""

    def culprit(self, **changes: Any) -> TrainingRun:
        """Return the run that something will happen to."""
        usual = {"targets": tuple(targets_of(self.family)[:1]), "batch_size": 2, "enabled": False, "epochs": 3}
        return new_run(self.model, self.bank, CULPRIT, plan_of(**(usual | changes)))

    def drive(self, steps: Working[float, bool]) -> None:
        """Run all to their ends, and hold the two to what they are by themselves."""
        plans = _plans(self.family)
        traces = [Trace() for _ in plans]
        for slot, (plan, trace) in enumerate(zip(plans, traces, strict=True)):
            run = new_run(self.model, self.bank, slot, plan)
            self.pool.add(f"run {slot}", follow(run, trace, plan.leaves), tenant=f"tenant {slot}")
        self.pool.add("culprit", self._noting(steps), tenant="other")
        left: dict[str, bool] = {}
        while len(self.pool):
            left |= self.pool.step()
            self.largest = max(self.largest, self.pool.pass_tokens)
        assert self.largest > 25
        assert left == {"run 0": True, "run 1": True, "culprit": not self.errors}
        for plan, trace in zip(plans, traces, strict=True):
            assert_same(trace, alone(self.family, plan))
            assert len(trace.losses) == STEPS
            assert all(weight.isfinite().all() for weight in trace.weights.values())

    def _noting(self, steps: Working[float, bool]) -> Working[float, bool]:
        try:
            return (yield from steps)
        except Exception as error:
            self.errors.append(error)
            raise


def _before_work(number: int, steps: Working[float, bool], act: Callable[[], None]) -> Working[float, bool]:
    """Do `steps`, and `act` before a work."""
    count, answer = 0, None
    while True:
        try:
            item = steps.send(answer)
        except StopIteration as stop:
            return bool(stop.value)
        if isinstance(item, Work):
            count += 1
            if count == number:
                act()
        answer = yield item


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_learning_rate_that_blows_a_run_up(family: str) -> None:
    beside = Beside(family)
    beside.drive(follow(beside.culprit(learning_rate=1e30, batch_size=1), Trace(), None))
    (error,) = beside.errors
    assert isinstance(error, TrainingError)
    assert error.code == "diverged"


@pytest.mark.parametrize("family", FAMILY_NAMES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers(family: str, value: float) -> None:
    """The run itself goes back to its last good state and ends well."""
    beside, trace = Beside(family), Trace()
    run = beside.culprit()

    def poison() -> None:
        for weight in run.state.weights.values():
            weight.data.fill_(value)

    beside.drive(_before_work(4, follow(run, trace, None), poison))
    assert trace.losses.count(None) == 3
    assert run.state.progress.set_back == 1
    assert trace.finished is not None


def test_an_example_that_the_model_cannot_read() -> None:
    beside = Beside("llama")
    beside.culprit()

    def reads() -> Working[float, bool]:
        for token in (3, 4, 10**6):
            yield Work(CULPRIT, (Window((1, token, 2), (0, 1, 1)),), share=0.5)
        return True

    beside.drive(reads())
    (error,) = beside.errors
    assert isinstance(error, IndexError)


def test_an_error_of_the_run_itself() -> None:
    beside = Beside("llama")
    error = ValueError("bad data")
    beside.drive(_before_work(5, follow(beside.culprit(), Trace(), None), lambda: _raise(error)))
    assert beside.errors == [error]


def test_an_error_half_way_back_through_the_layers() -> None:
    """By then the runs beside it have gradients of the upper layer."""
    beside = Beside("llama")
    run, error = beside.culprit(), RuntimeError("a kernel failed")
    name = next(iter(run.state.weights))

    def spoil() -> None:
        run.state.weights[name].register_hook(lambda _: _raise(error))

    beside.drive(_before_work(3, follow(run, Trace(), None), spoil))
    assert name.startswith("model.layers.0.")
    assert beside.errors == [error]


def _limit_memory(model: LanguageModel, monkeypatch: pytest.MonkeyPatch, tokens: int) -> list[int]:
    """Let the last layer find no memory for more tokens than these; return a list of those it was asked for."""
    layer, asked = model.layer, []

    def limited(number: int, x_TD: Tensor, *others: Any, **named: Any) -> Tensor:
        if number == len(model.layers) - 1 and len(x_TD) > tokens:
            asked.append(len(x_TD))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return layer(number, x_TD, *others, **named)

    monkeypatch.setattr(model, "layer", limited)
    return asked


def test_too_little_memory_for_all_together_is_enough_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    beside, trace = Beside("llama"), Trace()
    asked = _limit_memory(beside.model, monkeypatch, 30)
    beside.drive(follow(beside.culprit(), trace, None))
    assert len(asked) > 3
    assert beside.errors == []
    assert trace.finished is not None


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_example_longer_than_memory_allows(monkeypatch: pytest.MonkeyPatch, checkpointing: bool) -> None:
    beside = Beside("llama")
    asked = _limit_memory(beside.model, monkeypatch, 40)
    changes = {"length": 60, "seq_len": 64, "batch_size": 1, "activation_checkpointing": checkpointing}
    beside.drive(follow(beside.culprit(**changes), Trace(), None))
    (error,) = beside.errors
    assert isinstance(error, torch.OutOfMemoryError)
    assert max(asked) > 60
