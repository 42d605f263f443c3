"""Any mixture of slots in one batch gives each sequence what it gets alone: outputs, and its slot's gradients.

Slots carry factors of unequal ranks, dense deltas, all weights of their own, or nothing; a token or many of each.
"""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.models.exactness import every_target, float64_model, own_weights
from tests.models.tiny_configs import FAMILIES, SPECS, attention_config, hybrid_config, state_space_config
from workers.lora.adapter import AdapterWeights
from workers.lora.bank import AdapterBank
from workers.models.batch import pack
from workers.models.config import ModelConfig
from workers.models.language_model import LanguageModel
from workers.models.layers.places import MAX_PLACES

CONFIGS: dict[str, Callable[[], ModelConfig]] = {
    "attention": attention_config,
    **{kind: (lambda kind=kind: state_space_config(kind)) for kind in SPECS},
    **{family: (lambda family=family: hybrid_config(family)) for family in FAMILIES},
}
SLOTS = 6
Sequences = list[tuple[int, list[int]]]
"""Slot and tokens of each."""


def _narrow(model: LanguageModel, seed: int) -> AdapterWeights:
    """An adapter on one module in two, without deltas."""
    adapter = every_target(model, seed=seed, rank=3)
    names = sorted(adapter.tensors)[::2]
    return AdapterWeights(
        {name: adapter.tensors[name] for name in names},
        dict.fromkeys(names, 0.7),
        alpha=2.1,
        rank=3,
        targets=adapter.targets,
    )


def _own(model: LanguageModel) -> AdapterWeights:
    adapter = own_weights(model)
    for tensor in adapter.own.values():
        tensor.mul_(1.1)
    return adapter


@cache
def _model(kind: str, *, trained: bool) -> tuple[LanguageModel, AdapterBank]:
    """Slots 0 and 1 have everything, 2 and 3 factors on some modules, 4 weights of its own, 5 nothing."""
    model = float64_model(CONFIGS[kind]())
    model.freeze()
    bank = AdapterBank(model)
    bank.load(0, every_target(model, seed=1), trainable=trained)
    bank.load(1, every_target(model, seed=2, rank=1), trainable=trained)
    bank.load(2, _narrow(model, 3), trainable=trained)
    bank.load(3, _narrow(model, 4), trainable=trained)
    bank.load(4, _own(model), trainable=trained)
    return model, bank


def _near(ours: Tensor, expected: Tensor) -> bool:
    return bool((ours - expected).abs().max() <= 1e-9 * (1 + expected.abs().max()))


tokens = st.lists(st.integers(0, 10), min_size=1, max_size=5)
mixtures = st.lists(st.tuples(st.integers(-1, SLOTS - 1), tokens), min_size=1, max_size=8)


@pytest.mark.parametrize("kind", CONFIGS)
@given(mixture=mixtures, following=st.lists(st.integers(0, 10), min_size=8, max_size=8))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_served_rows_equal_those_alone(kind: str, mixture: Sequences, following: list[int]) -> None:
    model, _ = _model(kind, trained=False)
    slots = [slot for slot, _ in mixture]
    caches, own = ([model.new_cache(8) for _ in mixture] for _ in range(2))
    with torch.no_grad():
        first = model.hidden(pack([ids for _, ids in mixture], slots, "cpu"), caches)
        starts = [cache.length for cache in caches]
        steps = [[following[number]] for number in range(len(mixture))]
        second = model.hidden(pack(steps, slots, "cpu", starts), caches)
        logits = model.logits(second, slots)
        row = 0
        for number, (slot, ids) in enumerate(mixture):
            alone = model.hidden(pack([ids], [slot], "cpu"), [own[number]])
            assert _near(first[row : row + len(ids)], alone)
            step = model.hidden(pack([steps[number]], [slot], "cpu", [len(ids)]), [own[number]])
            assert _near(second[number], step[0])
            assert _near(logits[number], model.logits(step, [slot])[0])
            row += len(ids)


def _gradients(kind: str, mixture: Sequences, slots: list[int]) -> tuple[Tensor, dict[tuple[int, str], Tensor | None]]:
    """Return every row's loss and the gradients of the slots' parameters for the losses' weighted sum."""
    model, bank = _model(kind, trained=True)
    leaves = {(s, n): p for s in slots for n, p in bank.parameters(s).items()}
    hidden = model.hidden(pack([ids for _, ids in mixture], [slot for slot, _ in mixture], "cpu"))
    targets = torch.tensor([(token * 3 + 1) % 11 for _, ids in mixture for token in ids])
    of_row = [slot for slot, ids in mixture for _ in ids]
    nll = model.nll(hidden, targets, of_row)
    weights = torch.cat([torch.linspace(0.5, 1.5, len(ids), dtype=torch.float64) for _, ids in mixture])
    if not leaves:
        return nll, {}
    grads = torch.autograd.grad((nll * weights).sum(), list(leaves.values()), allow_unused=True)
    return nll.detach(), dict(zip(leaves, grads, strict=True))


@pytest.mark.parametrize("kind", CONFIGS)
@given(mixture=st.lists(st.tuples(st.integers(0, 4), tokens), min_size=2, max_size=7))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_gradients_of_a_slot_equal_those_alone(kind: str, mixture: Sequences) -> None:
    used = sorted({slot for slot, _ in mixture})
    nll, together = _gradients(kind, mixture, used)
    of_row = torch.tensor([slot for slot, ids in mixture for _ in ids])
    for slot in used:
        own_nll, alone = _gradients(kind, [pair for pair in mixture if pair[0] == slot], [slot])
        assert _near(nll[of_row == slot], own_nll)
        for name, expected in alone.items():
            ours = together[name]
            if ours is None or expected is None:
                assert all(g is None or not g.any() for g in (ours, expected)), name
            else:
                assert _near(ours, expected), name


def test_slots_beyond_the_places_and_exchanged_ones_are_served_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """More slots than places, in batches that change: places are taken over and factors exchanged under a slot."""
    model = float64_model(attention_config())
    bank = AdapterBank(model)
    count = MAX_PLACES + 5

    def check(slots: list[int]) -> None:
        with torch.no_grad():
            together = model.hidden(pack([[3]] * len(slots), slots, "cpu"))
            for row, slot in enumerate(slots):
                alone = model.hidden(pack([[3, 5, 1, 2, 4, 6]], [slot], "cpu"))[0]
                assert _near(together[row], alone), slot

    for slot in range(count):
        bank.load(slot, every_target(model, seed=slot, rank=1 + slot % 3))
    check(list(range(8)))
    check([*range(4, count), -1])
    bank.load(6, every_target(model, seed=99, rank=5))
    bank.clear(7)
    check([5, 6, 7, 20, -1, 30])
    check([6])
    for slot in range(count):
        bank.load(slot, _narrow(model, slot) if slot % 2 else every_target(model, seed=slot, rank=2))
    check(list(range(20, count)))
    check(list(range(20)))
    monkeypatch.setattr("workers.lora.bank.MAX_RANK", 2)
    bank.load(3, every_target(model, seed=3, rank=3))
    assert model.places.apart == {3}
    check([2, 3, 4, 5])
