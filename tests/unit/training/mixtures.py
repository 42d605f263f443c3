"""Runs of every kind, done alone or side by side in a RunPool, and what came of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from torch import Tensor

from app.contracts.training import JobConfig
from app.text.tokenize import TokenizedExample
from tests.unit.training.tiny import config_of, examples_of
from tests.unit.training.tiny_families import family_model, new_adapter
from workers.lora.bank import AdapterBank
from workers.models.language_model import LanguageModel
from workers.training.events import Finished, StepDone
from workers.training.pool import RunPool
from workers.training.shared_pass import alone
from workers.training.trainer import TrainingRun
from workers.training.work import Work, Working

STEPS = 50


@dataclass(frozen=True)
class Plan:
    """One run: what its configuration changes of the usual, its data, and when it comes and goes.

    It joins after `joins` slices of the pool and leaves after `leaves` optimizer steps, None: when it has ended.
    """

    changes: tuple[tuple[str, object], ...]
    length: int = 6
    joins: int = 0
    leaves: int | None = STEPS

    @property
    def config(self) -> JobConfig:
        """The run's configuration."""
        return config_of(**{key: list(v) if isinstance(v, tuple) else v for key, v in self.changes})

    @property
    def data(self) -> list[TokenizedExample]:
        """Ten sequences of `length` tokens and more, other tokens for another length."""
        return examples_of(10, length=self.length, seed=self.length)


def plan_of(*, length: int = 6, joins: int = 0, leaves: int | None = STEPS, **changes: object) -> Plan:
    """Return a plan of a run that goes on for longer than it stays, unless `epochs` are given."""
    return Plan(tuple(({"epochs": STEPS} | changes).items()), length, joins, leaves)


@dataclass
class Trace:
    """What came of a run: the loss of each step, the weights it left with, and its end where it came to it."""

    losses: list[float | None] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    finished: Finished | None = None


def follow(run: TrainingRun, trace: Trace, leaves: int | None) -> Working[float, bool]:
    """Do the run as a job would, note what comes of it, and leave after so many optimizer steps."""
    works, answer = run.works(), None
    while trace.finished is None and len(trace.losses) != leaves:
        event = works.send(answer)
        answer = None
        if isinstance(event, Work):
            answer = yield event
            continue
        if isinstance(event, StepDone):
            trace.losses.append(event.metrics.loss)
        elif isinstance(event, Finished):
            trace.finished = event
        yield 0.0
    trace.weights = {name: weight.detach().clone() for name, weight in run.state.weights.items()}
    return True


def new_run(model: LanguageModel, bank: AdapterBank, slot: int, plan: Plan) -> TrainingRun:
    """Return the plan's run in a slot of the bank."""
    return TrainingRun(model, bank, slot, plan.config, new_adapter(model, plan.config), plan.data)


def run_alone(family: str, plan: Plan) -> Trace:
    """Do a run on a model of its own, each of its works in a pass of its own."""
    model, trace = family_model(family), Trace()
    for _ in alone(model, follow(new_run(model, AdapterBank(model), 0, plan), trace, plan.leaves)):
        pass
    return trace


def run_together(family: str, plans: Sequence[Plan], tokens_per_pass: int) -> tuple[list[Trace], int]:
    """Do the runs side by side on one model; return what came of each, and the tokens of the largest pass."""
    model = family_model(family)
    bank, traces = AdapterBank(model), [Trace() for _ in plans]
    pool = RunPool(model, bank.parameters, tokens_per_pass=tokens_per_pass)
    waiting = sorted(range(len(plans)), key=lambda number: plans[number].joins)
    slices, largest = 0, 0
    while waiting or len(pool):
        while waiting and (plans[waiting[0]].joins <= slices or not len(pool)):
            number = waiting.pop(0)
            run = new_run(model, bank, number, plans[number])
            pool.add(str(number), follow(run, traces[number], plans[number].leaves), tenant=str(number))
        for number in map(int, pool.step()):
            bank.clear(number)
        slices, largest = slices + 1, max(largest, pool.pass_tokens)
    return traces, largest


def assert_same(ours: Trace, expected: Trace) -> None:
    """Hold losses to 1e-5 and weights to 1e-4."""
    assert ours.losses == pytest.approx(expected.losses, abs=1e-5)
    assert ours.weights.keys() == expected.weights.keys()
    for name, weight in expected.weights.items():
        assert (ours.weights[name] - weight).norm() <= 1e-4 * weight.norm(), name
