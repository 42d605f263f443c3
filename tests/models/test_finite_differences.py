"""Every gradient against central differences in float64: all base weights, and both factors of all seven targets."""

import pytest
import torch
from torch import Tensor

from app.contracts.training import LoRAConfig
from tests.models.conftest import TARGETS, module_shapes, random_model
from tests.models.exactness import assert_every_weight, assert_gradients, model_loss
from workers.lora.adapter import AdapterWeights, init_adapter
from workers.lora.bank import AdapterBank
from workers.models.language_model import LanguageModel

SEQUENCES = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 3]]


def _model_loss(model: LanguageModel, slots: list[int]) -> Tensor:
    return model_loss(model, slots, SEQUENCES)


@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_of_a_model(tied: bool) -> None:
    assert_every_weight(random_model(torch.float64, tied=tied).config)


def _adapter(model: LanguageModel, seed: int, rank: int, targets: list[str]) -> AdapterWeights:
    shapes = module_shapes(model)
    adapter = init_adapter(shapes, LoRAConfig(rank=rank, alpha=rank * 1.5, targets=targets, seed=seed))
    generator = torch.Generator().manual_seed(seed)
    for _, b_NR in adapter.tensors.values():
        b_NR.copy_(torch.randn(b_NR.shape, generator=generator) * 0.3)
    return adapter


@pytest.mark.parametrize("slots", [[0, 0, 0], [0, -1, 2]], ids=["one adapter", "mixed slots"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_factor_of_every_target(slots: list[int], tied: bool) -> None:
    model = random_model(torch.float64, tied=tied)
    model.freeze()
    bank = AdapterBank(model)
    bank.load(0, _adapter(model, 1, 2, [*TARGETS, "embed_tokens"]), trainable=True)
    bank.load(2, _adapter(model, 2, 3, ["q_proj", "v_proj", "down_proj", "embed_tokens"]), trainable=True)
    used = {name: p for slot in sorted(set(slots) - {-1}) for name, p in _named(bank, slot).items()}
    assert len([name for name in used if name.startswith("0:")]) == 2 * 7 * 2 + 2
    assert_gradients(lambda: _model_loss(model, slots), used)


def test_dense_deltas_beside_low_rank_terms_in_a_mixed_batch() -> None:
    model = random_model(torch.float64)
    bank = AdapterBank(model)
    adapter = _adapter(model, 1, 2, TARGETS)
    for name in ("model.layers.0.input_layernorm.weight", "model.layers.1.self_attn.k_proj.weight"):
        shape = model.weights()[name].shape
        adapter.dense[name] = torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 0.1
    bank.load(0, adapter, trainable=True)
    bank.load(2, _adapter(model, 2, 3, TARGETS), trainable=True)
    used = {**_named(bank, 0), **_named(bank, 2)}
    assert len([name for name in used if name.endswith(".delta")]) == 2
    assert_gradients(lambda: _model_loss(model, [2, 0, -1]), used)


def _named(bank: AdapterBank, slot: int) -> dict[str, Tensor]:
    return {f"{slot}:{name}": parameter for name, parameter in bank.parameters(slot).items()}
