"""Slots of many adapters in one pass on a real GPU, held against each alone in float64 on the CPU.

Run with `pytest tests/gpu -s` on a machine with CUDA.
"""

import time
from dataclasses import dataclass

import pytest
import torch

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
BOUNDS = [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)]


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


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(("dtype", "bound"), BOUNDS)
def test_runs_in_one_pass_have_the_gradients_of_each_alone(kind: str, dtype: torch.dtype, bound: float) -> None:
    lengths = [[33, 33], [7], [64, 2, 2], [33]]
    theirs: list[list[Window]] = [windows(CONFIGS[kind](), each, seed=slot) for slot, each in enumerate(lengths)]
    exact = Mixture.of(kind, torch.device("cpu"), torch.float64, dtype, trainable=True)
    mixed = Mixture.of(kind, CUDA, dtype, dtype, trainable=True)
    works = [Work(slot, tuple(theirs[slot]), share=1.0) for slot in SLOTS]
    expected = [_run(exact.model, [work])[0] for work in works]
    assert _run(mixed.model, works) == pytest.approx(expected, rel=bound)
    worst = 0.0
    for slot in SLOTS:
        pairs = [(p.grad, exact.bank.parameters(slot)[n].grad) for n, p in mixed.bank.parameters(slot).items()]
        ours = torch.cat([grad.flatten().double().cpu() for grad, _ in pairs if grad is not None])
        worst = max(worst, relative_error(ours, torch.cat([grad.flatten() for _, grad in pairs if grad is not None])))
    print(f"{kind} {dtype}: gradients of four runs in one pass, worst {worst:.2e}")
    assert worst <= bound


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(("dtype", "bound"), BOUNDS)
def test_decoding_a_mixture_equals_each_alone(kind: str, dtype: torch.dtype, bound: float) -> None:
    exact = Mixture.of(kind, torch.device("cpu"), torch.float64, dtype, trainable=False)
    mixed = Mixture.of(kind, CUDA, dtype, dtype, trainable=False)
    slots = [2, -1, 0, 3, 3, 1, -1]
    prompts = [list(w.token_ids) for w in windows(CONFIGS[kind](), [20, 20, 3, 9, 9, 9, 50], seed=9)]
    starts = [len(prompt) - 1 for prompt in prompts]
    with torch.no_grad():
        caches = [mixed.model.new_cache(64) for _ in prompts]
        mixed.model.hidden(pack([prompt[:-1] for prompt in prompts], slots, CUDA), caches)
        last = mixed.model.hidden(pack([p[-1:] for p in prompts], slots, CUDA, starts), caches)
        ours = mixed.model.logits(last, slots)
        alone = [exact.model.hidden(pack([p], [slot], "cpu"))[-1:] for p, slot in zip(prompts, slots, strict=True)]
        expected = [exact.model.logits(row, [slot])[0] for row, slot in zip(alone, slots, strict=True)]
    worst = max(relative_error(ours[number], row) for number, row in enumerate(expected))
    print(f"{kind} {dtype}: a decoding step of seven sequences of five slots, worst {worst:.2e}")
    assert worst <= bound


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
