"""A packed batch equals its rows alone: other sequences, other slots and their order make no difference."""

import itertools

import pytest
import torch

from app.contracts.training import LoRAConfig
from tests.models.conftest import TARGETS
from workers.loading import LoadedBase
from workers.lora.adapter import AdapterWeights, init_adapter
from workers.lora.bank import AdapterBank
from workers.models.batch import pack
from workers.models.scoring import sequence_nll

SEQUENCES = [[5, 6, 7, 8], [9, 10, 11, 12], [13, 14], [20], [21, 22, 23, 24]]
SLOTS = [0, -1, 1, 0, 1]


def _adapter(base: LoadedBase, seed: int, rank: int, targets: list[str]) -> AdapterWeights:
    config = LoRAConfig(rank=rank, alpha=2.0 * rank, targets=targets, seed=seed)
    adapter = init_adapter(base.info.modules, config)
    for _, b_NR in adapter.tensors.values():
        b_NR.normal_(0, 0.2, generator=torch.Generator().manual_seed(seed))
    return adapter


@pytest.fixture
def bank(base: LoadedBase) -> AdapterBank:
    bank = AdapterBank(base.model)
    bank.load(0, _adapter(base, 1, 4, TARGETS))
    bank.load(1, _adapter(base, 2, 2, ["v_proj", "gate_proj"]))
    return bank


@pytest.mark.usefixtures("bank")
def test_batch_equals_rows_alone(base: LoadedBase) -> None:
    model = base.model
    together = model.hidden(pack(SEQUENCES, SLOTS, "cpu"))
    start = 0
    for ids, slot in zip(SEQUENCES, SLOTS, strict=True):
        alone = model.hidden(pack([ids], [slot], "cpu"))
        assert (together[start : start + len(ids)] - alone).abs().max() < 1e-5
        start += len(ids)


@pytest.mark.usefixtures("bank")
def test_decoding_together_equals_decoding_alone(base: LoadedBase) -> None:
    model = base.model
    caches, single = ([model.new_cache(8) for _ in SEQUENCES] for _ in range(2))
    with torch.no_grad():
        model.hidden(pack(SEQUENCES, SLOTS, "cpu"), caches)
        starts = [cache.length for cache in caches]
        together = model.hidden(pack([[30]] * 5, SLOTS, "cpu", starts), caches)
        for row, (ids, slot) in enumerate(zip(SEQUENCES, SLOTS, strict=True)):
            model.hidden(pack([ids], [slot], "cpu"), [single[row]])
            alone = model.hidden(pack([[30]], [slot], "cpu", [len(ids)]), [single[row]])
            assert (together[row] - alone[0]).abs().max() < 1e-5


def test_slots_differ_and_clearing_restores_the_base(base: LoadedBase, bank: AdapterBank) -> None:
    outputs = [base.model.hidden(pack([SEQUENCES[0]], [slot], "cpu")) for slot in (-1, 0, 1)]
    for one, other in itertools.combinations(outputs, 2):
        assert (one - other).abs().max() > 1e-2
    bank.clear(0)
    assert torch.equal(base.model.hidden(pack([SEQUENCES[0]], [0], "cpu")), outputs[0])


def test_training_gradients_in_a_mixed_batch_equal_those_alone(base: LoadedBase) -> None:
    bank = AdapterBank(base.model)
    bank.load(0, _adapter(base, 1, 4, TARGETS), trainable=True)
    bank.load(1, _adapter(base, 2, 2, ["v_proj", "gate_proj"]), trainable=True)

    def gradients(slots: list[int], rows: slice) -> dict[str, torch.Tensor]:
        leaves = {f"{s}:{n}": p for s in (0, 1) for n, p in bank.parameters(s).items()}
        hidden = base.model.hidden(pack(SEQUENCES[rows], slots, "cpu"))
        loss = base.model.nll(hidden, torch.arange(len(hidden))).sum()
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return dict(zip(leaves, grads, strict=True))

    mixed = gradients([0, 1], slice(0, 2))
    alone = gradients([0], slice(0, 1))
    for name, expected in alone.items():
        if name.startswith("0:"):
            assert (mixed[name] - expected).abs().max() <= 1e-5 * (1 + expected.abs().max()), name
        else:
            assert expected is None, name
            assert mixed[name].abs().max() > 0, name


def test_an_overflowing_neighbour_does_not_reach_other_rows(base: LoadedBase) -> None:
    model, bank = base.model, AdapterBank(base.model)
    loud = _adapter(base, 3, 2, ["q_proj"])
    for a_RK, _ in loud.tensors.values():
        a_RK.fill_(3e38)
    bank.load(0, loud)
    alone = model.hidden(pack([SEQUENCES[0]], [-1], "cpu"))
    together = model.hidden(pack([SEQUENCES[0], SEQUENCES[1]], [-1, 0], "cpu"))
    assert (together[:4] - alone).abs().max() < 1e-5


def test_sequence_nll_sums_masked_positions(base: LoadedBase) -> None:
    sequences = [(ids, [0, *[1] * (len(ids) - 1)]) for ids in SEQUENCES]
    sequences[1] = (SEQUENCES[1], [1, 0, 0, 1])
    scores = list(sequence_nll(base.model, sequences, -1, max_tokens=9))
    assert [tokens for _, tokens in scores] == [3, 1, 1, 0, 3]
    for (ids, mask), (nll, _) in zip(sequences, scores, strict=True):
        log_probs = base.model.logits(base.model.hidden(pack([ids], [-1], "cpu"))).log_softmax(-1)
        expected = -sum(float(log_probs[t - 1, ids[t]]) for t in range(1, len(ids)) if mask[t])
        assert nll == pytest.approx(expected, abs=1e-4)


def test_pack_refuses_empty_sequences() -> None:
    with pytest.raises(ValueError, match="no empty one"):
        pack([[1], []], [0, 0], "cpu")
