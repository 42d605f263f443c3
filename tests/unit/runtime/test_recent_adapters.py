"""What a worker says it holds."""

from workers.runtime.recent_adapters import RecentAdapters


def test_the_versions_used_last_stay() -> None:
    recent = RecentAdapters(2)
    assert recent.use(["a", "b"]) == []
    assert recent.use(["a"]) == []
    assert recent.use(["c"]) == ["b"]
    assert recent.use(["d", "e", "f"]) == ["a", "c", "d"]
    assert len(recent) == 2
