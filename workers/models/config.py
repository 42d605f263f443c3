"""What a model is made of: a list of layers, each some sublayers. Knows numbers and names; readers of files fill it in.

A sublayer adds to the residual stream: x = x + residual_multiplier · mixer(rms_norm(x)). Names are Hugging Face's, so
that weights, adapters and exports speak of the same things.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol


class MixerSpec(Protocol):
    """Numbers of one kind of layer; `layers/registry.py` says which class is built from it."""


@dataclass(frozen=True)
class SublayerSpec:
    """`norm` and `prefix` are the module names of the RMSNorm and of the mixer, as `model.layers.0.self_attn`."""

    norm: str
    prefix: str
    mixer: MixerSpec


LayerSpec = tuple[SublayerSpec, ...]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary positions: the first `dim` of each head turn, with inverse frequencies [dim / 2] in radians a token."""

    dim: int
    inverse_frequencies: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.dim % 2 or len(self.inverse_frequencies) * 2 != self.dim:
            raise ValueError(f"{len(self.inverse_frequencies)} frequencies do not turn {self.dim} dimensions in pairs")


def plain_rope(dim: int, theta: float) -> RopeSpec:
    """Return θ^(−2i/dim) for each pair (Su et al. 2021, arXiv:2104.09864)."""
    return RopeSpec(dim, tuple(theta ** (-i / dim) for i in range(0, dim, 2)))


@dataclass(frozen=True)
class AttentionSpec:
    """Causal attention; `heads` share `kv_heads` keys.

    `rotary` turns queries and keys by the model's rope, all of a head or its first `rotary_dim`. A token sees the
    `window` latest tokens, itself among them (None: all). `qk_norm_eps` puts an RMSNorm on each query and key head.
    `scale` multiplies the scores, 1/√head_dim by default.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary: bool = True
    rotary_dim: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm_eps: float | None = None
    window: int | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} query heads cannot share {self.kv_heads} key/value heads evenly")


@dataclass(frozen=True)
class MlpSpec:
    """SwiGLU of width `hidden`. `gate_up` names the modules that hold gate and up, two or one for both."""

    hidden: int
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    bias: bool = False


@dataclass(frozen=True)
class MambaSpec:
    """Mamba-1. `norms` puts an RMSNorm on step, B and C: none, weightless (FalconMamba) or weighted (Jamba)."""

    inner: int
    state: int
    conv_kernel: int
    dt_rank: int
    conv_bias: bool = True
    proj_bias: bool = False
    norms: Literal["none", "weightless", "weighted"] = "none"
    norm_eps: float = 1e-6


@dataclass(frozen=True)
class Mamba2Spec:
    """Mamba-2: `heads` of width `head_dim` in `groups` that share B and C.

    `norm_groups` parts of the gated norm are normalised apart; steps are clamped to `dt_limit`.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    conv_kernel: int
    norm_eps: float
    norm_groups: int = 1
    conv_bias: bool = True
    proj_bias: bool = False
    dt_limit: tuple[float, float] = (0.0, math.inf)

    @property
    def inner(self) -> int:
        """Width of the scan's input."""
        return self.heads * self.head_dim


@dataclass(frozen=True)
class ConvSpec:
    """A depthwise causal convolution alone, as EvermindLM has it; tap 0 is the present token."""

    taps: int


@dataclass(frozen=True)
class SharedExpertSpec:
    """EvermindLM's experts: two-layer ReLU nets of width `hidden`, one always on and the `top_k` best of `experts`."""

    hidden: int
    experts: int
    top_k: int


@dataclass(frozen=True)
class MoeSpec:
    """SwiGLU nets of width `hidden`, the `top_k` best of `experts` for each row, and `shared`, which is always on.

    `gates` says which logits share the softmax: the selected ones, or all. `router`, `gate_up` and `down` are tensor
    names after the prefix; a `{}` in a name is an expert's number, and a name without it holds all experts.
    """

    hidden: int
    experts: int
    top_k: int
    gates: Literal["selected", "all"]
    router: str
    gate_up: tuple[str, ...]
    down: str
    shared: MlpSpec | None = None


@dataclass(frozen=True)
class ModelConfig:
    """Widths and names of a whole model, and its layers.

    `embedding`, `final_norm` and `head` are module names; without `final_norm` the head reads the residual stream as it
    is. `logits_divisor` divides the logits, `embedding_multiplier` scales the looked-up rows. With `wide_residual` the
    residual stream is float32 or wider, whatever the weights are.
    """

    vocab_size: int
    hidden_size: int
    context_length: int
    norm_eps: float
    layers: tuple[LayerSpec, ...]
    tied_head: bool
    rope: RopeSpec | None = None
    embedding: str = "model.embed_tokens"
    final_norm: str | None = "model.norm"
    head: str = "lm_head"
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_divisor: float = 1.0
    wide_residual: bool = False
