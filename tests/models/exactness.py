"""Gradients against central differences in float64, for any model: its own weights, low-rank factors and deltas."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from workers.lora.adapter import AdapterWeights
from workers.lora.bank import AdapterBank
from workers.models.batch import pack
from workers.models.config import ModelConfig
from workers.models.language_model import LanguageModel

STEP = 1e-6
RAGGED = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 3], [4]]


def central_difference(loss: Callable[[], Tensor], parameter: Tensor) -> Tensor:
    """Return the gradient by moving each scalar a little both ways."""
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


def assert_gradients(loss: Callable[[], Tensor], parameters: Mapping[str, Tensor]) -> None:
    """Every parameter has a gradient of its own, not zero everywhere, and equal to the central differences."""
    loss().backward()
    for name, parameter in parameters.items():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
        expected = central_difference(loss, parameter)
        assert torch.allclose(parameter.grad, expected, rtol=1e-5, atol=1e-7), name


def model_loss(model: LanguageModel, slots: list[int], sequences: list[list[int]] = RAGGED) -> Tensor:
    """A weighted sum over all rows of a ragged batch, so that no row's gradient hides another's."""
    hidden_TD = model.hidden(pack(sequences, slots, "cpu"))
    targets_T = torch.tensor([(3 * i) % model.config.vocab_size for i in range(len(hidden_TD))])
    weights_T = torch.linspace(0.5, 1.5, len(hidden_TD), dtype=torch.float64)
    slots_T = torch.tensor(slots).repeat_interleave(torch.tensor([len(s) for s in sequences]))
    whose = {slot: slots_T == slot for slot in slots}
    nll = {slot: model.nll(hidden_TD[rows], targets_T[rows], slot) for slot, rows in whose.items()}
    return torch.stack([nll[slot].double() @ weights_T[rows] for slot, rows in whose.items()]).sum()


def float64_model(config: ModelConfig, *, seed: int = 0) -> LanguageModel:
    """Return a model with every weight away from zero and, where it is a norm's, around one."""
    model = LanguageModel(config, torch.device("cpu"), torch.float64)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.weights().items():
        values = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.base.copy_(values * 0.4 + (1.0 if "norm" in name else 0.0))
    return model


def own_weights(model: LanguageModel) -> AdapterWeights:
    """Return an adapter that holds every weight of the base as its own."""
    own = {name: weight.base.clone() for name, weight in model.weights().items()}
    return AdapterWeights({}, {}, alpha=1.0, rank=1, targets=[], own=own)


def every_target(model: LanguageModel, *, seed: int, rank: int = 2) -> AdapterWeights:
    """Return an adapter on all modules, the embedding among them, and all tensors that may carry deltas."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    modules = model.adaptable()
    ranks = {name: min(rank, m.out_features, m.in_features) for name, m in modules.items()}
    return AdapterWeights(
        tensors={n: (random(ranks[n], m.in_features), random(m.out_features, ranks[n])) for n, m in modules.items()},
        scales=dict.fromkeys(modules, 1.5),
        alpha=1.5 * rank,
        rank=rank,
        targets=sorted({name.rpartition(".")[2] for name in modules}),
        dense={name: random(*w.shape) for name, w in model.weights().items() if w.dense_target},
    )


def assert_every_weight(config: ModelConfig) -> None:
    """Check all base weights of a model, trained as one slot's own."""
    model = float64_model(config)
    bank = AdapterBank(model)
    bank.load(0, own_weights(model), trainable=True)
    assert len(bank.parameters(0)) == len(model.weights())
    assert_gradients(lambda: model_loss(model, [0] * len(RAGGED)), dict(bank.parameters(0)))


def assert_every_target(config: ModelConfig) -> None:
    """Check all factors and deltas of two adapters that share a batch with each other and with the bare base."""
    model = float64_model(config)
    model.freeze()
    bank = AdapterBank(model)
    bank.load(0, every_target(model, seed=1), trainable=True)
    bank.load(2, every_target(model, seed=2, rank=1), trainable=True)
    leaves = {f"{slot}:{name}": leaf for slot in (0, 2) for name, leaf in bank.parameters(slot).items()}
    assert_gradients(lambda: model_loss(model, [0, 2, 0, -1]), leaves)
