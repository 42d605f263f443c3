"""Runs the `graft` command in this process, as its entry point does."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.cli.main import main
from app.core.settings import get_settings


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


Graft = Callable[..., Result]


@pytest.fixture
def graft(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Graft]:
    """Return a function that runs one command in an environment without any setting but those given."""
    for name in ("GRAFT_DATA_DIR", "GRAFT_DATABASE_URL", "GRAFT_REDIS_URL", "GRAFT_CONFIG_FILE", "GRAFT_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **environment: str) -> Result:
        get_settings.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr("sys.argv", ["graft", *arguments])
            for name, value in environment.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main()
        captured = capsys.readouterr()
        return Result(int(ended.value.code or 0), captured.out, captured.err)

    yield run
    get_settings.cache_clear()
