"""MambaForCausalLM and FalconMambaForCausalLM."""

import math

from workers.loading.architectures.base import Architecture, Json, field, require
from workers.models.config import MambaSpec, MixerSpec, ModelConfig, SublayerSpec

UNBOUNDED = 1 << 20
"""Context length of a model without positions whose config names none."""


def inner_width(config: Json) -> int:
    """Return the inner width: named, or `expand` times the hidden size."""
    return int(config.get("intermediate_size") or config.get("expand", 2) * field(config, "hidden_size"))


def backbone(config: Json, mixer: MixerSpec, *, tied: bool) -> ModelConfig:
    """Return a stack of one kind of state-space layer under the names `backbone.layers.N`."""

    def layer(index: int) -> tuple[SublayerSpec]:
        prefix = f"backbone.layers.{index}"
        return (SublayerSpec(f"{prefix}.norm", f"{prefix}.mixer", mixer),)

    require(config, "hidden_act", "silu")
    return ModelConfig(
        vocab_size=int(field(config, "vocab_size")),
        hidden_size=int(field(config, "hidden_size")),
        context_length=int(config.get("max_position_embeddings") or UNBOUNDED),
        norm_eps=float(config.get("layer_norm_epsilon", 1e-5)),
        layers=tuple(layer(i) for i in range(int(field(config, "num_hidden_layers")))),
        tied_head=bool(config.get("tie_word_embeddings", tied)),
        embedding="backbone.embeddings",
        final_norm="backbone.norm_f",
        wide_residual=bool(config.get("residual_in_fp32", True)),
    )


def _spec(config: Json, **norms: object) -> MambaSpec:
    rank = config.get("time_step_rank", "auto")
    return MambaSpec(
        inner=inner_width(config),
        state=int(field(config, "state_size")),
        conv_kernel=int(config.get("conv_kernel", 4)),
        dt_rank=math.ceil(field(config, "hidden_size") / 16) if rank == "auto" else int(rank),
        conv_bias=bool(config.get("use_conv_bias", True)),
        proj_bias=bool(config.get("use_bias", False)),
        **norms,  # type: ignore[arg-type]
    )


def read_mamba(config: Json) -> ModelConfig:
    """Return the layers of a Mamba-1. Raises LoadingError naming a field that is missing or not supported."""
    return backbone(config, _spec(config), tied=True)


def read_falcon_mamba(config: Json) -> ModelConfig:
    """Return the layers of a FalconMamba: weightless norms on step, B and C."""
    spec = _spec(config, norms="weightless", norm_eps=float(config.get("mixer_rms_eps", 1e-6)))
    return backbone(config, spec, tied=True)


MAMBA = Architecture(read_mamba)
FALCON_MAMBA = Architecture(read_falcon_mamba)
