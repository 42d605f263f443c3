"""Every weight of small state-space models, and every adapter target on them, against finite differences."""

import pytest

from tests.models.exactness import assert_every_target, assert_every_weight
from tests.models.tiny_configs import SPECS, state_space_config


@pytest.mark.parametrize("kind", SPECS)
def test_every_weight(kind: str) -> None:
    assert_every_weight(state_space_config(kind))


@pytest.mark.parametrize("kind", SPECS)
def test_every_factor_and_delta_of_every_target(kind: str) -> None:
    assert_every_target(state_space_config(kind))
