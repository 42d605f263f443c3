"""Whose turn it is."""

from tests.unit.inference.conftest import generate
from workers.inference.scheduler import Limits, Scheduler


def start_next(scheduler: Scheduler) -> str | None:
    """Start the request in turn and return its id."""
    request = scheduler.pick()
    if request is None:
        return None
    scheduler.start(request)
    return request.id


def test_the_tenant_with_the_fewest_places_goes_first_then_the_first_come() -> None:
    scheduler = Scheduler(Limits(5))
    for i in range(4):
        scheduler.add(generate(f"a{i}", [1], "v1", "tnt-a"))
    scheduler.add(generate("b0", [1], "v1", "tnt-b"))
    scheduler.add(generate("base", [1], None, "tnt-b"))
    scheduler.add(generate("c0", [1], None, "tnt-c"))
    assert [start_next(scheduler) for _ in range(6)] == ["a0", "b0", "c0", "a1", "base", None]
    scheduler.remove("a0")
    assert start_next(scheduler) == "a2"


def test_a_request_that_does_not_fit_is_not_overtaken_by_smaller_ones() -> None:
    scheduler = Scheduler(Limits(4))
    scheduler.add(generate("two", [1], n=2))
    scheduler.add(generate("four", [1], n=4))
    scheduler.add(generate("one", [1]))
    assert [start_next(scheduler) for _ in range(2)] == ["two", None]
    scheduler.shrink("two", 1)
    assert start_next(scheduler) is None
    scheduler.remove("two")
    assert [start_next(scheduler) for _ in range(2)] == ["four", None]


def test_requests_passed_over_are_not_picked() -> None:
    scheduler = Scheduler(Limits(4))
    scheduler.add(generate("first", [1]))
    scheduler.add(generate("second", [1]))
    picked = scheduler.pick({"first"})
    assert picked is not None
    assert picked.id == "second"


def test_states_share_the_bytes_and_nobody_overtakes_who_waits_for_some() -> None:
    scheduler = Scheduler(Limits(10, 100))
    scheduler.add(generate("small", [1]), 30)
    scheduler.add(generate("two", [1], n=2), 30)
    scheduler.add(generate("large", [1]), 80)
    scheduler.add(generate("tiny", [1]), 1)
    assert [start_next(scheduler) for _ in range(3)] == ["small", "two", None]
    assert scheduler.state_bytes == 90
    scheduler.shrink("two", 1)
    assert scheduler.state_bytes == 60
    scheduler.remove("small")
    assert start_next(scheduler) is None
    scheduler.remove("two")
    assert [start_next(scheduler) for _ in range(2)] == ["large", "tiny"]
    scheduler.remove("large")
    scheduler.remove("tiny")
    assert scheduler.state_bytes == 0
