"""Builds a layer from its spec: the one list of the kinds of layers there are."""

from collections.abc import Callable
from typing import Any

import torch

from workers.models.config import (
    AttentionSpec,
    ConvSpec,
    Mamba2Spec,
    MambaSpec,
    MixerSpec,
    MlpSpec,
    MoeSpec,
    SharedExpertSpec,
)
from workers.models.layers.attention import Attention
from workers.models.layers.conv import Conv
from workers.models.layers.mamba1 import Mamba1
from workers.models.layers.mamba2 import Mamba2
from workers.models.layers.mixer import Mixer
from workers.models.layers.mlp import Mlp
from workers.models.layers.moe import Moe
from workers.models.layers.shared_expert import SharedExpert

_LAYERS: dict[type, Callable[[Any, int, str, torch.device, torch.dtype], Mixer]] = {
    AttentionSpec: Attention,
    ConvSpec: Conv,
    Mamba2Spec: Mamba2,
    MambaSpec: Mamba1,
    MlpSpec: Mlp,
    MoeSpec: Moe,
    SharedExpertSpec: SharedExpert,
}


def build_mixer(spec: MixerSpec, width: int, prefix: str, device: torch.device, dtype: torch.dtype) -> Mixer:
    """Return the layer of `spec` for a residual stream of `width`; its modules' names start with `prefix`."""
    return _LAYERS[type(spec)](spec, width, prefix, device, dtype)
