"""Activation checkpointing: the same gradients bit for bit, and a fraction of the memory that counts."""

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from app.contracts.training import LoRAConfig
from tests.llama import llama_config
from tests.models.conftest import module_shapes
from workers.lora.adapter import AdapterWeights, init_adapter
from workers.lora.bank import AdapterBank
from workers.lora.new_adapter import new_full
from workers.models.batch import pack
from workers.models.language_model import LanguageModel

SEQUENCES = [[1, 2, 3, 4, 5, 6, 7, 8] * 8, [9, 10, 3] * 6]


class PeakBytes(TorchDispatchMode):
    """Counts the bytes of all tensors made inside that are alive at once, not views; `peak` is the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage._cdata for storage in _storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for storage in _storages(out):
            self._count(storage, given)
        return out

    def _count(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        key = storage._cdata
        if key in self._seen or key in given:
            return
        self._seen.add(key)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, key, storage.nbytes())

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    """Return the storages of all tensors in a tree, but for oneDNN's packed weights, which have none."""
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [tensor.untyped_storage() for tensor in tensors if tensor.layout == torch.strided]


def _model(layers: int) -> LanguageModel:
    config = llama_config(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=40,
        layers=layers,
        heads=2,
        kv_heads=1,
        head_dim=8,
        context_length=128,
        rope_theta=100.0,
        norm_eps=1e-5,
        tied_head=True,
    )
    model = LanguageModel(config, torch.device("cpu"), torch.float32)
    generator = torch.Generator().manual_seed(3)
    for name, weight in model.weights().items():
        weight.base.copy_(torch.randn(weight.shape, generator=generator) * 0.2 + ("norm" in name))
    model.freeze()
    return model


def _adapter(model: LanguageModel, kind: str) -> AdapterWeights:
    if kind == "full":
        return new_full(model)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens"]
    adapter = init_adapter(module_shapes(model), LoRAConfig(rank=2, alpha=4, targets=targets, seed=1))
    for _, b_NR in adapter.tensors.values():
        b_NR.copy_(torch.randn(b_NR.shape, generator=torch.Generator().manual_seed(4)) * 0.3)
    return adapter


def _gradients(model: LanguageModel, bank: AdapterBank, *, recompute: bool) -> tuple[dict[str, torch.Tensor], int]:
    """Return every gradient and the most bytes that were alive on the way to them."""
    with PeakBytes() as memory:
        hidden_TD = model.hidden(pack(SEQUENCES, [0, 0], "cpu"), recompute=recompute)
        targets_T = torch.arange(len(hidden_TD)) % 40
        model.nll(hidden_TD, targets_T, 0).sum().backward()
    gradients = {}
    for name, parameter in bank.parameters(0).items():
        assert parameter.grad is not None, name
        gradients[name], parameter.grad = parameter.grad, None
    return gradients, memory.peak


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_gradients_are_the_same_bit_for_bit(kind: str) -> None:
    model = _model(3)
    bank = AdapterBank(model)
    bank.load(0, _adapter(model, kind), trainable=True)
    kept, _ = _gradients(model, bank, recompute=False)
    again, _ = _gradients(model, bank, recompute=True)
    assert all(torch.equal(again[name], gradient) for name, gradient in kept.items())
    assert all(gradient.any() for gradient in kept.values())


def test_at_24_layers_the_peak_is_at_most_35_hundredths() -> None:
    model = _model(24)
    bank = AdapterBank(model)
    bank.load(0, _adapter(model, "lora"), trainable=True)
    _, kept = _gradients(model, bank, recompute=False)
    _, again = _gradients(model, bank, recompute=True)
    assert again <= 0.35 * kept
