"""GraftHybridForCausalLM: fresh models made of Mamba-1, Mamba-2 and attention layers in any order, by preset or list.

Attention layers carry an MLP after them; state-space layers stand alone. Head width is 64 throughout.
"""

from collections.abc import Callable

from workers.loading.architectures.base import Architecture, Json, LoadingError, field
from workers.models.config import (
    AttentionSpec,
    LayerSpec,
    Mamba2Spec,
    MambaSpec,
    MixerSpec,
    MlpSpec,
    ModelConfig,
    SublayerSpec,
    plain_rope,
)

NAME = "GraftHybridForCausalLM"
HEAD_DIM = 64
PRESETS = {"nano": (128, 4), "small": (256, 6), "medium": (512, 8), "large": (768, 12)}
"""Width and number of layers."""
SCHEDULES = {"jamba": 4, "zamba": 6}
"""Every how many layers one is attention; the others are Mamba-2."""
KINDS = ("mamba1", "mamba2", "attention")


def layer_kinds(schedule: str, layers: int) -> list[str]:
    """Return the kind of each layer, from a schedule's name or a list like `mamba1,mamba2,attention`.

    A list shorter than `layers` is repeated. Raises LoadingError naming an unknown kind.
    """
    if schedule in SCHEDULES:
        every = SCHEDULES[schedule]
        return ["attention" if (i + 1) % every == 0 else "mamba2" for i in range(layers)]
    kinds = [kind.strip() for kind in schedule.split(",")]
    for kind in kinds:
        if kind not in KINDS:
            known = f"{', '.join(SCHEDULES)} or a list of {', '.join(KINDS)}"
            raise LoadingError(f"schedule: {kind!r} is neither {known}")
    return [kinds[i % len(kinds)] for i in range(layers)]


def new_config(preset: str, schedule: str, vocab_size: int) -> Json:
    """Return the config.json of a fresh model. Raises LoadingError naming an unknown preset or layer kind."""
    if preset not in PRESETS:
        raise LoadingError(f"preset: {preset!r} is none of {', '.join(PRESETS)}")
    width, layers = PRESETS[preset]
    return {
        "architectures": [NAME],
        "model_type": "graft_hybrid",
        "vocab_size": vocab_size,
        "hidden_size": width,
        "layer_kinds": layer_kinds(schedule, layers),
        "state_size": 16,
        "conv_kernel": 4,
        "expand": 2,
        "intermediate_size": 4 * width,
        "max_position_embeddings": 8192,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }


def _mixers(config: Json) -> dict[str, Callable[[], MixerSpec]]:
    width, inner = int(field(config, "hidden_size")), int(field(config, "hidden_size") * field(config, "expand"))
    state, taps = int(field(config, "state_size")), int(field(config, "conv_kernel"))
    if width % HEAD_DIM:
        raise LoadingError(f"config.json: hidden_size {width} is no multiple of {HEAD_DIM}")
    heads = width // HEAD_DIM
    return {
        "mamba1": lambda: MambaSpec(inner, state, taps, dt_rank=-(-width // 16)),
        "mamba2": lambda: Mamba2Spec(inner // HEAD_DIM, HEAD_DIM, 1, state, taps, float(field(config, "rms_norm_eps"))),
        "attention": lambda: AttentionSpec(heads, heads, HEAD_DIM),
    }


def read_config(config: Json) -> ModelConfig:
    """Return the layers. Raises LoadingError naming a field that is missing or not supported."""
    mixers, kinds = _mixers(config), list(field(config, "layer_kinds"))

    def layer(index: int, kind: str) -> LayerSpec:
        if kind not in mixers:
            raise LoadingError(f"config.json: layer_kinds[{index}] {kind!r} is none of {', '.join(KINDS)}")
        prefix = f"model.layers.{index}"
        place = "self_attn" if kind == "attention" else "mixer"
        first = SublayerSpec(f"{prefix}.input_layernorm", f"{prefix}.{place}", mixers[kind]())
        if kind != "attention":
            return (first,)
        mlp = MlpSpec(int(field(config, "intermediate_size")))
        return first, SublayerSpec(f"{prefix}.post_attention_layernorm", f"{prefix}.mlp", mlp)

    return ModelConfig(
        vocab_size=int(field(config, "vocab_size")),
        hidden_size=int(field(config, "hidden_size")),
        context_length=int(field(config, "max_position_embeddings")),
        norm_eps=float(field(config, "rms_norm_eps")),
        layers=tuple(layer(i, kind) for i, kind in enumerate(kinds)),
        tied_head=bool(field(config, "tie_word_embeddings")),
        rope=plain_rope(HEAD_DIM, float(field(config, "rope_theta"))),
    )


GRAFT_HYBRID = Architecture(read_config)
