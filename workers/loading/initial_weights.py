"""How the weights of a fresh model start. Knows tensors by name and shape; draws from one seed, name by name.

Matrices: normal with σ 0.02, those that write to the residual stream less by √(2 · layers) (GPT-2). State spaces:
A = −1..−N in Mamba-1 (S4D-real), one uniform value a head in [1, 16] in Mamba-2; steps log-uniform in [0.001, 0.1].
"""

import hashlib
import math

import torch
from torch import Tensor

from workers.models.language_model import LanguageModel

STEP_RANGE = (1e-3, 1e-1)
_RESIDUAL = ("out_proj.weight", "o_proj.weight", "down_proj.weight")


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


def _step_bias(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Return the inverse softplus of log-uniform steps."""
    low, high = (math.log(bound) for bound in STEP_RANGE)
    step = (torch.rand(shape, generator=generator) * (high - low) + low).exp()
    return step + torch.log(-torch.expm1(-step))


def _decay(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Return log(−A): of 1..N for each channel of Mamba-1, of a uniform value for each head of Mamba-2."""
    if len(shape) == 2:
        return torch.arange(1, shape[1] + 1, dtype=torch.float32).log().expand(shape).clone()
    return torch.empty(shape).uniform_(1, 16, generator=generator).log_()


def _spread(name: str, layers: int) -> float:
    return 0.02 / math.sqrt(2 * layers) if name.endswith(_RESIDUAL) else 0.02


def initial_weight(name: str, shape: torch.Size, *, layers: int, seed: int) -> Tensor:
    """Return the start of one tensor in float32; the same seed and name give the same values."""
    generator = _generator(seed, name)
    if name.endswith(("dt_bias", "dt_proj.bias")):
        return _step_bias(shape, generator)
    if name.endswith("A_log"):
        return _decay(shape, generator)
    if name.endswith(("norm.weight", ".D")):
        return torch.ones(shape)
    if name.endswith("bias"):
        return torch.zeros(shape)
    if name.endswith(("conv1d.weight", "dt_proj.weight")):
        bound = shape[-1] ** -0.5
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)
    return torch.randn(shape, generator=generator) * _spread(name, layers)


def initialise(model: LanguageModel, *, seed: int) -> None:
    """Fill every weight of a model."""
    layers = len(model.layers)
    for name, weight in model.weights().items():
        weight.base.copy_(initial_weight(name, weight.shape, layers=layers, seed=seed))
