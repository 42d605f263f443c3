"""Only the time inside a slice counts."""

from collections.abc import Iterator

from workers.training.clock import SliceClock


def test_the_callers_time_between_items_is_left_out() -> None:
    now = [100.0]
    clock = SliceClock(5.0, now=lambda: now[0])
    inside: list[float] = []

    def work() -> Iterator[int]:
        for i in range(3):
            now[0] += 2.0
            inside.append(clock.elapsed())
            yield i

    for _ in clock.timed(work()):
        now[0] += 1000.0
        assert clock.elapsed() == inside[-1]
    assert inside == [7.0, 9.0, 11.0]
    assert clock.elapsed() == 11.0
