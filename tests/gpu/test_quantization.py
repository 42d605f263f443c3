"""Bases in fewer bits on a real GPU: they compute what their dense values compute, and take the bytes they promise."""

import pytest
import torch

from tests.gpu.test_cuda import CUDA, SMALL, make_config, make_model, relative_error, start_adapter, windows
from workers.kernels.quantized_weight import KINDS, Kind
from workers.lora.bank import AdapterBank
from workers.models.language_model import LanguageModel
from workers.training.loss import nll_sum

SHARE = {"fp16": 0.52, "int8": 0.27, "nf4": 0.16}


def _gradients(model: LanguageModel) -> dict[str, torch.Tensor]:
    bank = AdapterBank(model)
    bank.load(0, start_adapter(model, make_config(), spread=0.02), trainable=True)
    nll_sum(model, windows(SMALL, [64, 33, 7], seed=3), 0).backward()
    return {name: p.grad.double().cpu() for name, p in bank.parameters(0).items() if p.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_train_on_the_quantised_values(kind: Kind) -> None:
    model = make_model(SMALL, CUDA, torch.float32)
    dense = sum(linear.weight.nbytes for linear in model.linears().values())
    for sublayer in model.sublayers():
        for group in sublayer.mixer.groups():
            group.quantize(kind)
    held = sum(linear.weight.nbytes for linear in model.linears().values())
    twin = LanguageModel(SMALL, CUDA, torch.float32)
    for name, weight in model.weights().items():
        twin.weights()[name].base.copy_(weight.base)
    expected, got = _gradients(twin), _gradients(model)
    error = max(relative_error(got[name], expected[name]) for name in expected)
    print(f"{kind}: {held / dense:.3f} of float32, worst gradient against the dense twin {error:.2e}")
    assert held <= SHARE[kind] * dense
    assert error <= 1e-4
