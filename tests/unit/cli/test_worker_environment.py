"""The environment a worker starts in."""

from app.cli.worker_environment import worker_environment


def test_a_worker_keeps_freed_blocks_unless_the_operator_decided_otherwise() -> None:
    made = worker_environment({"HOME": "/root"})
    assert made["HOME"] == "/root"
    assert "glibc.malloc.trim_threshold=" in made["GLIBC_TUNABLES"]
    assert worker_environment({"GLIBC_TUNABLES": "x=1"})["GLIBC_TUNABLES"] == "x=1"
