"""A small float32 model of each family with random weights, and what the service would know of it."""

from collections.abc import Callable

import torch

from app.contracts.base_models import BaseModelInfo
from app.contracts.targets import known_targets
from app.contracts.training import JobConfig
from tests.models.tiny_configs import FAMILIES, SIZES
from tests.unit.training.tiny import VOCAB, info_of, model_of
from workers.loading.architectures import ARCHITECTURES
from workers.loading.architectures.mamba import backbone
from workers.lora.adapter import AdapterWeights
from workers.lora.new_adapter import new_full, new_lora, new_wsla
from workers.models.config import Mamba2Spec, MambaSpec, ModelConfig
from workers.models.language_model import LanguageModel

HYBRID = "GraniteMoeHybridForCausalLM"
WIDTHS = {"vocab_size": VOCAB, "hidden_size": 16}


def _mamba() -> ModelConfig:
    return backbone(WIDTHS | {"num_hidden_layers": 2}, MambaSpec(24, 4, conv_kernel=3, dt_rank=2), tied=True)


def _mamba2() -> ModelConfig:
    spec = Mamba2Spec(heads=4, head_dim=6, groups=2, state=4, conv_kernel=3, norm_eps=1e-5)
    return backbone(WIDTHS | {"num_hidden_layers": 2}, spec, tied=True)


def _hybrid() -> ModelConfig:
    """A Mamba-2 layer and one of attention, each with experts."""
    sizes = {"intermediate_size": 12, "shared_intermediate_size": 8, "mamba_n_heads": 2, "mamba_d_head": 8}
    return ARCHITECTURES[HYBRID].read_config(SIZES | FAMILIES[HYBRID] | WIDTHS | sizes)


CONFIGS: dict[str, Callable[[], ModelConfig]] = {"mamba": _mamba, "mamba2": _mamba2, "hybrid": _hybrid}
FAMILY_NAMES = ("llama", *CONFIGS)


def family_model(family: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """Return the same model of a family every time."""
    if family == "llama":
        return model_of(dtype)
    model = LanguageModel(CONFIGS[family](), torch.device("cpu"), dtype)
    generator = torch.Generator().manual_seed(11)
    for name, weight in model.weights().items():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.base.ndim >= 2 and "A_log" not in name:
            weight.base.copy_(noise * (0.5 if "embed" in name else weight.shape[-1] ** -0.5))
        else:
            weight.base.copy_(noise * 0.2 + (1.0 if "norm" in name else 0.0))
    model.freeze()
    return model


def describe(model: LanguageModel) -> BaseModelInfo:
    """Return the model as a worker describes it; a Llama's keys stand in for the selective projection it lacks."""
    info = info_of(model)
    selective = [weight.name for s in model.sublayers() for weight in s.mixer.selective()]
    if not selective:
        return info
    tensors = {name: list(weight.shape) for name, weight in model.weights().items() if weight.dense_target}
    return info.model_copy(update={"tensors": tensors, "selective": selective})


def targets_of(family: str) -> list[str]:
    """Return all that an adapter can be put on in a family."""
    return known_targets(describe(family_model(family)))


def new_adapter(model: LanguageModel, config: JobConfig) -> AdapterWeights:
    """Return what a new run in the configuration's mode starts from."""
    if config.lora is not None:
        return new_lora(describe(model), config.lora)
    return new_wsla(describe(model)) if config.mode == "wsla" else new_full(model)
