"""What the hybrids of Mamba and attention share: `mamba_*` fields, and the layers of Bamba and Jamba."""

import math
from collections.abc import Callable, Collection

from workers.loading.architectures.base import Json, LoadingError, field
from workers.loading.architectures.mamba2 import step_limit
from workers.models.config import (
    AttentionSpec,
    LayerSpec,
    Mamba2Spec,
    MambaSpec,
    MixerSpec,
    ModelConfig,
    RopeSpec,
    SublayerSpec,
)


def read_mamba1(config: Json) -> MambaSpec:
    """Return the Mamba-1 layers, with weighted norms on step, B and C."""
    width, rank = int(field(config, "hidden_size")), config.get("mamba_dt_rank") or "auto"
    return MambaSpec(
        inner=int(config.get("mamba_expand") or 2) * width,
        state=int(config.get("mamba_d_state") or 16),
        conv_kernel=int(config.get("mamba_d_conv") or 4),
        dt_rank=math.ceil(width / 16) if rank == "auto" else int(rank),
        conv_bias=bool(config.get("mamba_conv_bias", True)),
        proj_bias=bool(config.get("mamba_proj_bias", False)),
        norms="weighted",
        norm_eps=float(field(config, "rms_norm_eps")),
    )


def read_mamba2(config: Json) -> Mamba2Spec:
    """Return the Mamba-2 layers. Raises LoadingError when the heads do not fit the width or the groups."""
    inner = int(config.get("mamba_expand") or 2) * int(field(config, "hidden_size"))
    heads, groups = int(field(config, "mamba_n_heads")), int(config.get("mamba_n_groups") or 1)
    size = config.get("mamba_d_head") or "auto"
    head_dim = inner // heads if size == "auto" else int(size)
    if heads * head_dim != inner:
        raise LoadingError(f"config.json: mamba_n_heads {heads} of mamba_d_head {head_dim} do not make {inner}")
    if heads % groups:
        raise LoadingError(f"config.json: mamba_n_heads {heads} cannot share mamba_n_groups {groups} evenly")
    return Mamba2Spec(
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state=int(field(config, "mamba_d_state")),
        conv_kernel=int(config.get("mamba_d_conv") or 4),
        norm_eps=float(field(config, "rms_norm_eps")),
        norm_groups=groups,
        conv_bias=bool(config.get("mamba_conv_bias", True)),
        proj_bias=bool(config.get("mamba_proj_bias", False)),
        dt_limit=step_limit(config),
    )


def read_stack(
    config: Json,
    mamba: MixerSpec,
    attention: AttentionSpec,
    attends: Collection[int],
    feed_forward: Callable[[int], MixerSpec],
    *,
    rope: RopeSpec | None = None,
) -> ModelConfig:
    """Return layers of `attention` where `attends` has their number and of `mamba` elsewhere, each before its MLP."""

    def layer(index: int) -> LayerSpec:
        prefix = f"model.layers.{index}"
        place, mixer = ("self_attn", attention) if index in attends else ("mamba", mamba)
        return (
            SublayerSpec(f"{prefix}.input_layernorm", f"{prefix}.{place}", mixer),
            SublayerSpec(f"{prefix}.pre_ff_layernorm", f"{prefix}.feed_forward", feed_forward(index)),
        )

    return ModelConfig(
        vocab_size=int(field(config, "vocab_size")),
        hidden_size=int(field(config, "hidden_size")),
        context_length=int(field(config, "max_position_embeddings")),
        norm_eps=float(field(config, "rms_norm_eps")),
        layers=tuple(layer(i) for i in range(int(field(config, "num_hidden_layers")))),
        tied_head=bool(config.get("tie_word_embeddings", False)),
        rope=rope,
        final_norm="model.final_layernorm",
    )
