"""Every weight and target of attention with all its options, against finite differences."""

from tests.models.exactness import assert_every_target, assert_every_weight
from tests.models.tiny_configs import attention_config


def test_every_weight() -> None:
    assert_every_weight(attention_config())


def test_every_factor_of_every_target() -> None:
    assert_every_target(attention_config())
