"""EvermindForCausalLM: the seeds' EvermindLM under Hugging Face's layout, and its tensors' names in an EVL0 file."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from workers.loading.architectures.base import Architecture, Json, field
from workers.loading.architectures.mamba import UNBOUNDED
from workers.models.config import ConvSpec, LayerSpec, ModelConfig, SharedExpertSpec, SublayerSpec

NAME = "EvermindForCausalLM"
NORM_EPS = 1e-5
_PARTS = ("w1", "b1", "w2", "b2")


def read_config(config: Json) -> ModelConfig:
    """Return the layers. Raises LoadingError naming a field that is missing."""
    conv = ConvSpec(int(field(config, "conv_kernel")))
    experts = SharedExpertSpec(
        int(field(config, "expert_size")), int(field(config, "num_experts")), int(field(config, "top_k"))
    )

    def layer(index: int) -> LayerSpec:
        prefix = f"model.layers.{index}"
        return (
            SublayerSpec(f"{prefix}.norm_conv", f"{prefix}.conv", conv),
            SublayerSpec(f"{prefix}.norm_moe", f"{prefix}.moe", experts),
        )

    return ModelConfig(
        vocab_size=int(field(config, "vocab_size")),
        hidden_size=int(field(config, "hidden_size")),
        context_length=int(config.get("max_position_embeddings") or UNBOUNDED),
        norm_eps=float(config.get("norm_eps", NORM_EPS)),
        layers=tuple(layer(i) for i in range(int(field(config, "num_hidden_layers")))),
        tied_head=True,
        embedding="model.embedding",
        final_norm=None,
    )


def from_seed_names(tensors: Mapping[str, Tensor], layers: int, experts: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of an EVL0 file under the model's names; routed experts are stacked."""
    yield "model.embedding.weight", tensors["embedding"]
    for index in range(layers):
        theirs, ours = f"layer{index}", f"model.layers.{index}"
        for name in ("conv", "norm_conv", "norm_moe"):
            yield f"{ours}.{name}.weight", tensors[f"{theirs}.{name}"]
        yield f"{ours}.moe.router.weight", tensors[f"{theirs}.moe.wr"]
        for part in _PARTS:
            shared = f"{ours}.moe.shared.{part.replace('b', 'w')}.{'weight' if part[0] == 'w' else 'bias'}"
            yield shared, tensors[f"{theirs}.moe.shared.{part}"]
            stack = [tensors[f"{theirs}.moe.expert{e}.{part}"] for e in range(experts)]
            yield f"{ours}.moe.experts.{part}", torch.stack(stack)


def to_seed_names(tensors: Mapping[str, Tensor], layers: int, experts: int) -> dict[str, Tensor]:
    """Return the model's tensors under the names of an EVL0 file."""
    found = {"embedding": tensors["model.embedding.weight"]}
    for index in range(layers):
        theirs, ours = f"layer{index}", f"model.layers.{index}"
        for name in ("conv", "norm_conv", "norm_moe"):
            found[f"{theirs}.{name}"] = tensors[f"{ours}.{name}.weight"]
        found[f"{theirs}.moe.wr"] = tensors[f"{ours}.moe.router.weight"]
        for part in _PARTS:
            shared = f"{ours}.moe.shared.{part.replace('b', 'w')}.{'weight' if part[0] == 'w' else 'bias'}"
            found[f"{theirs}.moe.shared.{part}"] = tensors[shared]
            for e in range(experts):
                found[f"{theirs}.moe.expert{e}.{part}"] = tensors[f"{ours}.moe.experts.{part}"][e]
    return found


EVERMIND = Architecture(read_config)
