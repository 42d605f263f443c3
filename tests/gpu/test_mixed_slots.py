"""Slots of many adapters in one pass on a real GPU, held against each alone in float64 on the CPU.

Run with `pytest tests/gpu -s` on a machine with CUDA.
"""

import time
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.gpu.test_cuda import CUDA, SMOLLM2, make_config, make_model, relative_error, start_adapter, windows
from tests.gpu.test_state_spaces import CONFIGS
from tests.models.exactness import every_target
from workers.lora.bank import AdapterBank
from workers.models.batch import pack
from workers.models.language_model import LanguageModel
from workers.training.dataset import Window
from workers.training.shared_pass import run_pass
from workers.training.work import Work

SLOTS = [0, 1, 2, 3]


@dataclass
class Mixture:
    """A model whose slots all have factors of unequal ranks on every module, and deltas where tensors may have some."""

    model: LanguageModel
    bank: AdapterBank

    @staticmethod
    def of(kind: str, device: torch.device, dtype: torch.dtype, stored: torch.dtype, *, trainable: bool) -> "Mixture":
        model = make_model(CONFIGS[kind](), device, dtype, stored=stored)
        bank = AdapterBank(model)
        for slot in SLOTS:
            adapter = every_target(model, seed=slot, rank=1 + 2 * slot)
            held = (*adapter.tensors.values(), *((tensor,) for tensor in adapter.dense.values()))
            for tensor in (part for tensors in held for part in tensors):
                tensor.mul_(0.1).copy_(tensor.to(stored))
            bank.load(slot, adapter, trainable=trainable)
        return Mixture(model, bank)


def _run(model: LanguageModel, works: list[Work]) -> list[float]:
    slices = run_pass(model, works)
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def _gradients(mixture: Mixture, slot: int) -> Tensor:
    leaves = mixture.bank.parameters(slot).values()
    grads = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return torch.cat([grad.flatten().double().cpu() for grad in grads])


def _assert_no_worse(name: str, together: list[float], alone: list[float], dtype: torch.dtype) -> None:
    """In float32 the errors are small; in bfloat16 they are no greater than without neighbours, give or take."""
    print(f"{name} {dtype}: worst error together {max(together):.2e}, alone {max(alone):.2e}")
    bounds = [1e-4 if dtype == torch.float32 else 1.5 * error + 1e-3 for error in alone]
    assert all(error <= bound for error, bound in zip(together, bounds, strict=True))


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_runs_in_one_pass_have_the_gradients_of_each_alone(kind: str, dtype: torch.dtype) -> None:
    lengths = [[33, 33], [7], [64, 2, 2], [33]]
    theirs: list[list[Window]] = [windows(CONFIGS[kind](), each, seed=slot) for slot, each in enumerate(lengths)]
    exact = Mixture.of(kind, torch.device("cpu"), torch.float64, dtype, trainable=True)
    ours = Mixture.of(kind, CUDA, dtype, dtype, trainable=True)
    works = [Work(slot, tuple(theirs[slot]), share=1.0) for slot in SLOTS]
    expected_nll = [_run(exact.model, [work])[0] for work in works]
    expected = [_gradients(exact, slot) for slot in SLOTS]
    assert _run(ours.model, works) == pytest.approx(expected_nll, rel=1e-4 if dtype == torch.float32 else 5e-2)
    together = [relative_error(_gradients(ours, slot), expected[slot]) for slot in SLOTS]
    for work in works:
        _run(ours.model, [work])
    alone = [relative_error(_gradients(ours, slot), expected[slot]) for slot in SLOTS]
    _assert_no_worse(f"{kind}, gradients of four runs", together, alone, dtype)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoding_a_mixture_equals_each_alone(kind: str, dtype: torch.dtype) -> None:
    exact = Mixture.of(kind, torch.device("cpu"), torch.float64, dtype, trainable=False).model
    ours = Mixture.of(kind, CUDA, dtype, dtype, trainable=False).model
    slots = [2, -1, 0, 3, 3, 1, -1]
    prompts = [list(w.token_ids) for w in windows(CONFIGS[kind](), [20, 20, 3, 9, 9, 9, 50], seed=9)]

    def last_logits(model: LanguageModel, numbers: list[int]) -> Tensor:
        some, theirs = [prompts[number] for number in numbers], [slots[number] for number in numbers]
        caches = [model.new_cache(64) for _ in some]
        model.hidden(pack([prompt[:-1] for prompt in some], theirs, model.device), caches)
        starts = [len(prompt) - 1 for prompt in some]
        last = model.hidden(pack([prompt[-1:] for prompt in some], theirs, model.device, starts), caches)
        return model.logits(last, theirs)

    with torch.no_grad():
        expected = torch.cat([last_logits(exact, [number]) for number in range(len(slots))])
        single = torch.cat([last_logits(ours, [number]) for number in range(len(slots))])
        mixed = last_logits(ours, list(range(len(slots))))
    together = [relative_error(row, right) for row, right in zip(mixed, expected, strict=True)]
    alone = [relative_error(row, right) for row, right in zip(single, expected, strict=True)]
    _assert_no_worse(f"{kind}, a decoding step of seven sequences of five slots", together, alone, dtype)


def test_figures_of_mixed_adapters() -> None:
    """Decoding steps with 16 adapters and without, and a pass of 16 runs beside one run with the same tokens."""
    model = make_model(SMOLLM2, CUDA, torch.bfloat16)
    bank = AdapterBank(model)
    for slot in range(17):
        rank = 16 if slot == 16 else (4, 8, 16, 64)[slot % 4]
        bank.load(slot, start_adapter(model, make_config(rank=rank), spread=0.02), trainable=True)
    rows = windows(SMOLLM2, [64] * 64, seed=1)
    fused = [Work(slot, tuple(rows[4 * slot : 4 * slot + 4]), share=1.0) for slot in range(16)]
    single = [Work(16, tuple(rows), share=1.0)]
    timed = {name: _seconds(lambda w=works: _run(model, w), 5) for name, works in (("16", fused), ("1", single))}
    print(f"a pass of 16 runs of 4 x 64 tokens: {timed['16'] * 1e3:.0f} ms, of one run: {timed['1'] * 1e3:.0f} ms")
    for slot in range(17):
        bank.load(slot, start_adapter(model, make_config(rank=8), spread=0.02))
    for slots in ([-1] * 16, list(range(16))):
        caches = [model.new_cache(256) for _ in slots]
        with torch.no_grad():
            model.hidden(pack([list(w.token_ids) for w in rows[:16]], slots, CUDA), caches)

            def step(slots: list[int] = slots, caches: list[object] = caches) -> None:
                starts = [cache.length for cache in caches]  # type: ignore[attr-defined]
                last = model.hidden(pack([[5]] * 16, slots, CUDA, starts), caches)  # type: ignore[arg-type]
                model.logits(last, slots).argmax(-1).tolist()

            print(f"a decoding step of 16 rows, slots {slots[0]} to {slots[-1]}: {_seconds(step, 20) * 1e3:.1f} ms")


def _seconds(work: object, times: int) -> float:
    for _ in range(3):
        work()  # type: ignore[operator]
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        work()  # type: ignore[operator]
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times
