"""JambaForCausalLM: Mamba-1 with some layers of attention without positions, and some of experts, by periods."""

from collections.abc import Iterator

from torch import Tensor

from workers.loading.architectures.base import Architecture, Json, LoadingError, field, require
from workers.loading.architectures.hybrid import read_mamba1, read_stack
from workers.loading.architectures.llama import read_heads
from workers.models.config import AttentionSpec, MixerSpec, MlpSpec, ModelConfig, MoeSpec

GATE_UP, DOWN = ("experts.{}.gate_proj.weight", "experts.{}.up_proj.weight"), "experts.{}.down_proj.weight"


def _at(config: Json, kind: str) -> range:
    """Return the layers of a kind. Raises LoadingError for a period or an offset that names none."""
    period, offset = int(field(config, f"{kind}_layer_period")), int(field(config, f"{kind}_layer_offset"))
    if not 0 <= offset < period:
        raise LoadingError(f"config.json: {kind}_layer_offset {offset} is not below {kind}_layer_period {period}")
    return range(offset, int(field(config, "num_hidden_layers")), period)


def _moe(config: Json, hidden: int, experts: int) -> MoeSpec:
    top_k = int(field(config, "num_experts_per_tok"))
    if not 1 <= top_k <= experts:
        raise LoadingError(f"config.json: num_experts_per_tok {top_k} of {experts} num_experts cannot be chosen")
    return MoeSpec(hidden, experts, top_k, gates="all", router="router.weight", gate_up=GATE_UP, down=DOWN)


def read_config(config: Json) -> ModelConfig:
    """Return the layers. Raises LoadingError naming a field that is missing or not supported."""
    for name, only in (("hidden_act", "silu"), ("mamba_inner_layernorms", True), ("sliding_window", None)):
        require(config, name, only)
    attends, expert_layers = _at(config, "attn"), _at(config, "expert")
    attention, mamba = AttentionSpec(*read_heads(config), rotary=False), read_mamba1(config)
    hidden, experts = int(field(config, "intermediate_size")), int(field(config, "num_experts"))
    mlp: MixerSpec = MlpSpec(hidden)
    mixture = _moe(config, hidden, experts) if experts > 1 else mlp

    def feed_forward(index: int) -> MixerSpec:
        return mixture if index in expert_layers else mlp

    return read_stack(config, mamba, attention, attends, feed_forward)


def split_experts(_config: ModelConfig, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield a stack of experts, as transformers holds it in memory, under each expert's own names."""
    prefix, _, kind = name.rpartition(".experts.")
    names = {"gate_up_proj": GATE_UP, "down_proj": (DOWN,)}.get(kind)
    if not prefix or names is None:
        yield name, tensor
        return
    for expert, map_NK in enumerate(tensor):
        for part, piece in zip(names, map_NK.chunk(len(names)), strict=True):
            yield f"{prefix}.{part.format(expert)}", piece


JAMBA = Architecture(read_config, rename=split_experts)
