"""Every weight of small state-space models, and every adapter target on them, against finite differences."""

import pytest

from tests.models.exactness import assert_every_target, assert_every_weight
from workers.loading.architectures.mamba import backbone
from workers.models.config import Mamba2Spec, MambaSpec, ModelConfig

MAMBA = MambaSpec(inner=6, state=3, conv_kernel=3, dt_rank=2)
FALCON = MambaSpec(inner=4, state=2, conv_kernel=2, dt_rank=2, norms="weightless", norm_eps=1e-3)
JAMBA = MambaSpec(inner=4, state=2, conv_kernel=2, dt_rank=2, norms="weighted", norm_eps=1e-3, proj_bias=True)
MAMBA2 = Mamba2Spec(heads=4, head_dim=2, groups=2, state=3, conv_kernel=3, norm_eps=1e-5, norm_groups=2)
BAMBA = Mamba2Spec(heads=2, head_dim=3, groups=1, state=2, conv_kernel=2, norm_eps=1e-3, proj_bias=True)
SPECS = {"mamba": MAMBA, "falcon": FALCON, "jamba": JAMBA, "mamba2": MAMBA2, "bamba": BAMBA}


def _config(spec: MambaSpec | Mamba2Spec) -> ModelConfig:
    sizes = {"vocab_size": 11, "hidden_size": 5, "num_hidden_layers": 2}
    return backbone(sizes, spec, tied=True)


@pytest.mark.parametrize("kind", SPECS)
def test_every_weight(kind: str) -> None:
    assert_every_weight(_config(SPECS[kind]))


@pytest.mark.parametrize("kind", SPECS)
def test_every_factor_and_delta_of_every_target(kind: str) -> None:
    assert_every_target(_config(SPECS[kind]))
