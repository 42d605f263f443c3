"""The loss is one mean over the step's counted positions, and every LoRA factor gets its own gradient."""

import pytest
import torch
from torch.nn.functional import log_softmax

from tests.unit.training.tiny import config_of, examples_of, model_of, start_of
from workers.lora.bank import AdapterBank
from workers.models.batch import pack
from workers.models.language_model import LanguageModel
from workers.training.dataset import Window, build_dataset, flatten
from workers.training.loss import nll_sum


def _trainable(dtype: torch.dtype) -> tuple[LanguageModel, AdapterBank]:
    """Return a model with an adapter in slot 0 whose B is not zero, so that A has a gradient too."""
    model = model_of(dtype)
    bank = AdapterBank(model)
    bank.load(0, start_of(model, config_of()), trainable=True)
    generator = torch.Generator().manual_seed(2)
    for name, p in bank.parameters(0).items():
        if name.endswith("lora_B"):
            p.data.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype) * 0.3)
    return model, bank


def _windows(count: int) -> tuple[Window, ...]:
    return flatten(build_dataset(examples_of(count), 32).examples)


def _gradients(model: LanguageModel, bank: AdapterBank, parts: list[tuple[Window, ...]]) -> dict[str, torch.Tensor]:
    total = sum(w.targets for part in parts for w in part)
    for part in parts:
        (nll_sum(model, part, 0) / total).backward()
    gradients = {n: p.grad.clone() for n, p in bank.parameters(0).items() if p.grad is not None}
    for p in bank.parameters(0).values():
        p.grad = None
    return gradients


def test_the_sum_equals_a_plain_computation_of_each_window_alone() -> None:
    model, _ = _trainable(torch.float64)
    windows = _windows(5)
    expected = 0.0
    for w in windows:
        logits = model.logits(model.hidden(pack([w.token_ids], [0], "cpu")))
        log_p = log_softmax(logits, -1)
        expected -= sum(log_p[t - 1, w.token_ids[t]].item() for t, counts in enumerate(w.loss_mask) if counts)
    assert nll_sum(model, windows, 0).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_any_cut_into_micro_batches_gives_the_big_batchs_gradient(dtype: torch.dtype, tolerance: float) -> None:
    model, bank = _trainable(dtype)
    windows = _windows(8)
    whole = _gradients(model, bank, [windows])
    cut = _gradients(model, bank, [windows[:1], windows[1:6], windows[6:]])
    assert whole.keys() == cut.keys() == bank.parameters(0).keys()
    for name, gradient in whole.items():
        assert (gradient - cut[name]).norm() <= tolerance * gradient.norm(), name


def test_every_factors_gradient_agrees_with_finite_differences() -> None:
    model, bank = _trainable(torch.float64)
    windows = _windows(3)
    total = sum(w.targets for w in windows)
    gradients = _gradients(model, bank, [windows])
    generator = torch.Generator().manual_seed(4)
    for name, p in bank.parameters(0).items():
        direction = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        losses = []
        for h in (1e-5, -1e-5):
            p.data.add_(h * direction)
            with torch.no_grad():
                losses.append(nll_sum(model, windows, 0).item() / total)
            p.data.sub_(h * direction)
        slope = (losses[0] - losses[1]) / 2e-5
        assert (gradients[name] * direction).sum().item() == pytest.approx(slope, rel=1e-5, abs=1e-9), name
