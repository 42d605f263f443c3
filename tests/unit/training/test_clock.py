"""A run's clock goes on from what earlier processes counted, and only while the run is at work."""

from workers.training.clock import RunClock


def test_time_counts_from_the_start_on_top_of_what_was_counted_before() -> None:
    now = [100.0]
    clock = RunClock(5.0, now=lambda: now[0])
    now[0] += 1000.0
    assert clock.elapsed() == 5.0
    clock.start()
    now[0] += 2.5
    assert clock.elapsed() == 7.5
