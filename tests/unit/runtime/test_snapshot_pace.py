"""Resume points come every so many steps, unless they are slow."""

from workers.runtime.snapshots import SnapshotPace


def test_quick_ones_come_at_every_interval() -> None:
    pace = SnapshotPace(4, lambda: 0.0)
    taken = []
    for step in range(1, 13):
        if pace.due(step):
            with pace.taking():
                taken.append(step)
    assert taken == [4, 8, 12]


def test_slow_ones_take_a_tenth_of_the_time() -> None:
    now = [0.0]
    pace = SnapshotPace(1, lambda: now[0])
    taken = 0
    for step in range(1, 1001):
        now[0] += 1.0
        if pace.due(step):
            with pace.taking():
                now[0] += 20.0
                taken += 1
    assert abs(20.0 * taken / now[0] - 0.1) < 0.01
