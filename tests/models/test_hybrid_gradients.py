"""Every weight of a whole small hybrid of each family, and every adapter target on it, against finite differences."""

import pytest

from tests.models.exactness import assert_every_target, assert_every_weight
from tests.models.tiny_configs import FAMILIES, hybrid_config


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight(family: str) -> None:
    assert_every_weight(hybrid_config(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_factor_and_delta_of_every_target(family: str) -> None:
    assert_every_target(hybrid_config(family))
