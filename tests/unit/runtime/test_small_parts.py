"""Fault points, patience and error objects."""

import os
import signal
from collections.abc import Iterator
from itertools import count

import pytest
from sqlalchemy.exc import OperationalError

from app.contracts.targets import UnknownTargetError
from app.db.session import Database
from app.text.examples import ExampleError
from workers.runtime.fault_points import FaultPoints
from workers.runtime.job_errors import job_error
from workers.runtime.retry import Pauses, patiently
from workers.training.errors import TrainingError


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals this process would have sent itself."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number) if pid == os.getpid() else None)
    return sent


def test_fault_points_fire_at_their_count_and_only_when_armed(signals: list[int]) -> None:
    faults = FaultPoints.from_environment({"GRAFT_FAULT": "step.after:kill:3,publish.before:stop"})
    for expected in ([], [], [signal.SIGKILL], [signal.SIGKILL]):
        faults.hit("step.after")
        faults.hit("snapshot.before")
        assert signals == expected
    faults.hit("publish.before")
    assert signals == [signal.SIGKILL, signal.SIGSTOP]
    FaultPoints.from_environment({}).hit("step.after")
    assert len(signals) == 2


@pytest.mark.parametrize("spec", ["nowhere:kill", "step.after:explode", "step.after", "step.after:kill:soon"])
def test_a_misspelt_fault_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        FaultPoints.from_environment({"GRAFT_FAULT": spec})


def test_a_commit_point_fires_inside_the_transaction_of_its_block_only(signals: list[int], sqlite_url: str) -> None:
    database = Database(sqlite_url)
    faults = FaultPoints.from_environment({"GRAFT_FAULT": "publish.before_commit:kill"})
    with database.write():
        pass
    assert signals == []
    with faults.at_commit("publish.before_commit"), database.write():
        assert signals == []
    assert signals == [signal.SIGKILL]
    database.dispose()


def away() -> OperationalError:
    """The error of a database that does not answer."""
    return OperationalError("SELECT 1", {}, Exception("connection refused"))


def test_patience_tries_again_with_growing_pauses_and_returns_the_result() -> None:
    outcomes: Iterator[object] = iter([away(), away(), away(), "done"])

    def call() -> object:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    results = []

    def collect() -> Pauses[None]:
        results.append((yield from patiently(call, what="test", patience=60)))

    assert list(collect()) == [0.1, 0.2, 0.4]
    assert results == ["done"]


def test_patience_ends_and_other_errors_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count(step=10)
    monkeypatch.setattr("workers.runtime.retry.time.monotonic", lambda: next(ticks))

    def unreachable() -> None:
        raise away()

    with pytest.raises(OperationalError):
        list(patiently(unreachable, what="test", patience=35))
    assert next(ticks) == 50

    def broken() -> None:
        raise ValueError("no database error")

    with pytest.raises(ValueError, match="no database error"):
        next(patiently(broken, what="test", patience=35))


def test_job_errors_are_precise_for_what_is_known_and_silent_about_surprises() -> None:
    assert job_error(TrainingError("zero_gradient", "q_proj got none")) == {
        "code": "zero_gradient",
        "message": "q_proj got none",
        "param": None,
    }
    assert job_error(ExampleError([("messages", "missing")]))["code"] == "invalid_training_data"
    assert job_error(UnknownTargetError("x_proj", "tiny", ["q_proj"]))["code"] == "unknown_target"
    surprise = job_error(RuntimeError("/secret/path"))
    assert surprise["code"] == "internal_error"
    assert "/secret" not in str(surprise["message"])
