"""docs/models.md names the architectures that there are."""

import re
from pathlib import Path

from workers.loading.architectures import ARCHITECTURES


def test_the_page_lists_what_can_be_loaded() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    assert set(re.findall(r"`(\w+(?:ForCausalLM|HeadModel))`", page)) == set(ARCHITECTURES)
