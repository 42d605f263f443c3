"""What the seeds' own engine computed for a small EvermindLM: see tests/data/evermind/README.md."""

import json
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "evermind"


@cache
def oracle() -> dict[str, Any]:
    """Return the numbers."""
    return json.loads((DATA / "evermind.json").read_text())


def file(name: str) -> bytes:
    """Return one of the files."""
    return (DATA / name).read_bytes()
