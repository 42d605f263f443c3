"""Mamba2ForCausalLM."""

import math
from typing import Any

from workers.loading.architectures.base import Architecture, Json, LoadingError, field
from workers.loading.architectures.mamba import backbone, inner_width
from workers.models.config import Mamba2Spec, ModelConfig


def _bound(value: Any) -> float:
    """Return a bound; transformers writes infinity, which JSON lacks, as {"__float__": "Infinity"}."""
    return float(value["__float__"] if isinstance(value, dict) else value)


def step_limit(config: Json) -> tuple[float, float]:
    """Return the bounds of the step."""
    low, high = config.get("time_step_limit") or (0.0, math.inf)
    return _bound(low), _bound(high)


def read_config(config: Json) -> ModelConfig:
    """Return the layers of a Mamba-2. Raises LoadingError naming a field that is missing or not supported."""
    heads, head_dim = int(field(config, "num_heads")), int(field(config, "head_dim"))
    groups = int(config.get("n_groups", 8))
    if inner_width(config) != heads * head_dim:
        raise LoadingError(f"config.json: num_heads {heads} of head_dim {head_dim} do not make {inner_width(config)}")
    if heads % groups:
        raise LoadingError(f"config.json: num_heads {heads} cannot share n_groups {groups} evenly")
    spec = Mamba2Spec(
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state=int(field(config, "state_size")),
        conv_kernel=int(config.get("conv_kernel", 4)),
        norm_eps=float(config.get("layer_norm_epsilon", 1e-5)),
        norm_groups=groups,
        conv_bias=bool(config.get("use_conv_bias", True)),
        proj_bias=bool(config.get("use_bias", False)),
        dt_limit=step_limit(config),
    )
    return backbone(config, spec, tied=False)


MAMBA2 = Architecture(read_config)
