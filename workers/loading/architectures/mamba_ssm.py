"""The layout of state-spaces' own `mamba_ssm` package: config.json without `architectures`, `backbone.embedding`."""

import math
from collections.abc import Iterator

from torch import Tensor

from workers.loading.architectures.base import Architecture, Json, LoadingError, field, require
from workers.loading.architectures.mamba import backbone
from workers.models.config import Mamba2Spec, MambaSpec, ModelConfig

NAME = "MambaLMHeadModel"
_MAMBA1 = {"d_state", "d_conv", "expand", "dt_rank", "conv_bias", "bias"}
_MAMBA2 = {"d_state", "d_conv", "expand", "headdim", "ngroups", "conv_bias", "bias", "chunk_size", "A_init_range"}
_INIT_ONLY = {"layer", "dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "use_fast_path", "use_mem_eff_path"}


def is_mamba_ssm(config: Json) -> bool:
    """Whether a config.json is in this layout."""
    return "architectures" not in config and {"d_model", "n_layer", "ssm_cfg"} <= set(config)


def _known(options: Json, names: set[str]) -> None:
    for name in sorted(set(options) - names - _INIT_ONLY):
        raise LoadingError(f"config.json: ssm_cfg.{name} is not supported")


def _mamba1(width: int, options: Json) -> MambaSpec:
    _known(options, _MAMBA1)
    rank = options.get("dt_rank", "auto")
    return MambaSpec(
        inner=int(options.get("expand", 2) * width),
        state=int(options.get("d_state", 16)),
        conv_kernel=int(options.get("d_conv", 4)),
        dt_rank=math.ceil(width / 16) if rank == "auto" else int(rank),
        conv_bias=bool(options.get("conv_bias", True)),
        proj_bias=bool(options.get("bias", False)),
    )


def _mamba2(width: int, options: Json) -> Mamba2Spec:
    _known(options, _MAMBA2)
    inner, head_dim = int(options.get("expand", 2) * width), int(options.get("headdim", 64))
    groups = int(options.get("ngroups", 1))
    if inner % head_dim or (inner // head_dim) % groups:
        raise LoadingError(f"config.json: ssm_cfg.headdim {head_dim} and ngroups {groups} do not divide {inner}")
    return Mamba2Spec(
        heads=inner // head_dim,
        head_dim=head_dim,
        groups=groups,
        state=int(options.get("d_state", 128)),
        conv_kernel=int(options.get("d_conv", 4)),
        norm_eps=1e-5,
        norm_groups=groups,
        conv_bias=bool(options.get("conv_bias", True)),
        proj_bias=bool(options.get("bias", False)),
    )


def read_config(config: Json) -> ModelConfig:
    """Return the layers. Raises LoadingError naming a field that is missing or not supported."""
    for name, only in (("rms_norm", True), ("d_intermediate", 0), ("attn_layer_idx", [])):
        require(config, name, only)
    options, width = config["ssm_cfg"], int(field(config, "d_model"))
    kind = options.get("layer", "Mamba1")
    if kind not in {"Mamba1", "Mamba2"}:
        raise LoadingError(f"config.json: ssm_cfg.layer {kind!r} is not supported, only Mamba1 and Mamba2")
    multiple = int(config.get("pad_vocab_size_multiple", 8))
    sizes = {
        "vocab_size": math.ceil(int(field(config, "vocab_size")) / multiple) * multiple,
        "hidden_size": width,
        "num_hidden_layers": field(config, "n_layer"),
        "tie_word_embeddings": config.get("tie_embeddings", True),
        "residual_in_fp32": config.get("residual_in_fp32", True),
    }
    return backbone(sizes, _mamba1(width, options) if kind == "Mamba1" else _mamba2(width, options), tied=True)


def rename(_config: ModelConfig, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensor under Hugging Face's name: only the embedding's differs."""
    yield name.replace("backbone.embedding.", "backbone.embeddings."), tensor


def restore(config: ModelConfig, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensor under mamba_ssm's name, and the copy of a tied embedding that it keeps as its head."""
    if name != "backbone.embeddings.weight":
        yield name, tensor
        return
    yield "backbone.embedding.weight", tensor
    if config.tied_head:
        yield "lm_head.weight", tensor.clone()


MAMBA_SSM = Architecture(read_config, rename, restore)
