"""Every gradient against central differences in float64: all base weights, and both factors of all seven targets."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from app.contracts.training import LoRAConfig
from tests.models.conftest import TARGETS, module_shapes, random_model
from workers.lora.adapter import AdapterWeights, init_adapter
from workers.lora.bank import AdapterBank
from workers.models.batch import pack
from workers.models.language_model import LanguageModel
from workers.models.layers.block import BatchContext
from workers.models.layers.linear import make_route
from workers.models.layers.rope import rotation_of

SEQUENCES = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 3]]
STEP = 1e-6


def _central_difference(loss: Callable[[], Tensor], parameter: Tensor) -> Tensor:
    result = torch.empty_like(parameter)
    flat, out = parameter.data.view(-1), result.view(-1)
    with torch.no_grad():
        for i in range(len(flat)):
            value = float(flat[i])
            flat[i] = value + STEP
            above = float(loss())
            flat[i] = value - STEP
            out[i] = (above - float(loss())) / (2 * STEP)
            flat[i] = value
    return result


def _assert_gradients(loss: Callable[[], Tensor], parameters: dict[str, Tensor]) -> None:
    loss().backward()
    for name, parameter in parameters.items():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
        expected = _central_difference(loss, parameter)
        assert torch.allclose(parameter.grad, expected, rtol=1e-5, atol=1e-7), name


def _model_loss(model: LanguageModel, slots: list[int]) -> Tensor:
    hidden_TD = model.hidden(pack(SEQUENCES, slots, "cpu"))
    targets_T = torch.tensor([(3 * i) % 11 for i in range(len(hidden_TD))])
    weights_T = torch.linspace(0.5, 1.5, len(hidden_TD), dtype=torch.float64)
    return (model.nll(hidden_TD, targets_T) * weights_T).sum()


@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_of_a_model(tied: bool) -> None:
    model = random_model(torch.float64, tied=tied).requires_grad_(True)
    _assert_gradients(lambda: _model_loss(model, [-1, -1, -1]), dict(model.named_parameters()))


def test_every_parameter_and_the_input_of_a_block() -> None:
    model = random_model(torch.float64).requires_grad_(True)
    block, lengths = model.blocks[1], [len(s) for s in SEQUENCES]
    batch = pack(SEQUENCES, [-1] * 3, "cpu")
    rotation = rotation_of(batch.positions_T, 4, 100.0, torch.float64)
    context = BatchContext(lengths, rotation, make_route([-1] * 3, lengths, model.device), None)
    x_TD = torch.randn(sum(lengths), 8, dtype=torch.float64, requires_grad=True)
    projection = torch.randn(sum(lengths), 8, dtype=torch.float64)

    def loss() -> Tensor:
        return (block(x_TD, context) * projection).sum()

    _assert_gradients(loss, {"input": x_TD, **dict(block.named_parameters())})


def _adapter(model: LanguageModel, seed: int, rank: int, targets: list[str]) -> AdapterWeights:
    adapter = init_adapter(module_shapes(model), LoRAConfig(rank=rank, alpha=rank * 1.5, targets=targets, seed=seed))
    generator = torch.Generator().manual_seed(seed)
    for _, b_NR in adapter.tensors.values():
        b_NR.copy_(torch.randn(b_NR.shape, generator=generator) * 0.3)
    return adapter


@pytest.mark.parametrize("slots", [[0, 0, 0], [0, -1, 2]], ids=["one adapter", "mixed slots"])
def test_every_factor_of_every_target(slots: list[int]) -> None:
    model = random_model(torch.float64)
    model.freeze()
    bank = AdapterBank(model)
    bank.load(0, _adapter(model, 1, 2, TARGETS), trainable=True)
    bank.load(2, _adapter(model, 2, 3, ["q_proj", "v_proj", "down_proj"]), trainable=True)
    used = {name: p for slot in sorted(set(slots) - {-1}) for name, p in _named(bank, slot).items()}
    assert len([name for name in used if name.startswith("0:")]) == 2 * 7 * 2
    _assert_gradients(lambda: _model_loss(model, slots), used)


def _named(bank: AdapterBank, slot: int) -> dict[str, Tensor]:
    return {f"{slot}:{name}": parameter for name, parameter in bank.parameters(slot).items()}
