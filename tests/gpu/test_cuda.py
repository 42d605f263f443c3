"""Training and serving on a CUDA device, held against the float64 reference on the CPU.

Run by hand on a machine with a GPU: `python -m pytest tests/gpu -s`. What a run printed is kept in benchmarks/.
"""

import math

import pytest
import torch

from app.contracts.base_models import ModuleShape
from app.contracts.training import JobConfig
from app.text.tokenize import TokenizedExample
from tests.llama import llama_config
from workers.lora.adapter import AdapterWeights, init_adapter
from workers.lora.bank import AdapterBank
from workers.models.batch import pack
from workers.models.config import ModelConfig
from workers.models.language_model import LanguageModel
from workers.training.dataset import Window
from workers.training.events import Finished, StepDone
from workers.training.loss import nll_sum
from workers.training.trainer import TrainingRun

CUDA = torch.device("cuda")
SMOLLM2 = llama_config(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    context_length=2048,
    rope_theta=100000.0,
    norm_eps=1e-5,
    tied_head=True,
)
SMALL = llama_config(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=32,
    context_length=512,
    rope_theta=10000.0,
    norm_eps=1e-5,
    tied_head=True,
)


def make_model(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
    stored: torch.dtype = torch.float64,
) -> LanguageModel:
    """Random weights, rounded to `stored` first, so that a float64 reference can hold another model's very weights."""
    model = LanguageModel(config, device, dtype)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.weights().items():
        values = torch.ones(weight.shape) if "norm" in name else torch.randn(weight.shape, generator=generator)
        scale = 1.0 if "norm" in name else (weight.shape[-1]) ** -0.5
        weight.base.copy_((values.double() * scale).to(stored))
    model.freeze()
    return model


def make_config(*, rank: int = 16, epochs: int = 3, learning_rate: float = 1e-3, batch_size: int = 4) -> JobConfig:
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return JobConfig.model_validate(
        {
            "mode": "lora",
            "seed": 7,
            "lora": {"rank": rank, "alpha": 2 * rank, "targets": targets, "seed": 7},
            "trust_region": {"max_delta": 0.05},
            "rollback": {"enabled": True, "tolerance": 1.25},
            "training": {
                "epochs": epochs,
                "batch_size": batch_size,
                "learning_rate": learning_rate,
                "seq_len": 512,
                "max_grad_norm": 1.0,
                "weight_decay": 0.0,
                "beta1": 0.9,
                "beta2": 0.999,
                "eps": 1e-8,
                "gradient_accumulation": 1,
                "warmup_steps": 2,
            },
        }
    )


def start_adapter(model: LanguageModel, config: JobConfig, *, spread: float) -> AdapterWeights:
    """An adapter with B away from zero, so that A has a gradient at once."""
    shapes = {
        name: ModuleShape(out_features=module.out_features, in_features=module.in_features)
        for name, module in model.linears().items()
    }
    adapter = init_adapter(shapes, config.lora)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: (a_RK, torch.randn(b_NR.shape, generator=generator) * spread)
        for name, (a_RK, b_NR) in adapter.tensors.items()
    }
    return AdapterWeights(tensors, adapter.scales, adapter.alpha, adapter.rank, adapter.targets)


def windows(config: ModelConfig, lengths: list[int], seed: int) -> list[Window]:
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, config.vocab_size, (n,), generator=generator).tolist() for n in lengths]
    return [Window(tuple(i), (0, *[1] * (len(i) - 1))) for i in ids]


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    return float((out.double().cpu() - reference).norm() / reference.norm())


def gradients(
    device: torch.device, dtype: torch.dtype, lengths: list[int], stored: torch.dtype
) -> tuple[float, dict[str, torch.Tensor]]:
    config = make_config()
    model = make_model(SMALL, device, dtype, stored=stored)
    bank = AdapterBank(model)
    bank.load(0, start_adapter(model, config, spread=0.02), trainable=True)
    loss = nll_sum(model, windows(SMALL, lengths, seed=3), 0)
    loss.backward()
    return loss.item(), {name: p.grad.double().cpu() for name, p in bank.parameters(0).items() if p.grad is not None}


@pytest.mark.parametrize("lengths", [[64, 64, 64, 64], [200, 3, 2, 77], [3]])
@pytest.mark.parametrize(("dtype", "whole", "each"), [(torch.float32, 1e-5, 1e-5), (torch.bfloat16, 3e-2, 1e-1)])
def test_lora_gradients_agree_with_float64(dtype: torch.dtype, whole: float, each: float, lengths: list[int]) -> None:
    """`whole` bounds the error of all gradients as one vector, `each` that of any single factor.

    A factor whose gradient all but vanishes (queries and keys over three tokens) is measured against a hundredth of
    the whole gradient instead of its own.
    """
    expected_loss, expected = gradients(torch.device("cpu"), torch.float64, lengths, stored=dtype)
    loss, got = gradients(CUDA, dtype, lengths, stored=dtype)
    assert got.keys() == expected.keys()
    least = torch.cat([g.flatten() for g in expected.values()]).norm() * 1e-2
    worst, name = max(
        (float((got[n] - expected[n]).norm() / torch.maximum(expected[n].norm(), least)), n) for n in expected
    )
    everything = relative_error(
        torch.cat([got[n].flatten() for n in expected]), torch.cat([g.flatten() for g in expected.values()])
    )
    print(
        f"{dtype} {lengths}: loss {loss:.5f} against {expected_loss:.5f}, gradient {everything:.2e}, "
        f"worst factor {worst:.2e} at {name}"
    )
    assert loss == pytest.approx(expected_loss, rel=whole)
    assert everything <= whole
    assert worst <= each


def run_losses(device: torch.device, dtype: torch.dtype) -> tuple[list[float], Finished]:
    config = make_config(epochs=6, learning_rate=3e-3)
    model = make_model(SMALL, device, dtype)
    examples = [TokenizedExample(list(w.token_ids), list(w.loss_mask)) for w in windows(SMALL, [40, 24, 33, 52] * 6, 5)]
    run = TrainingRun(model, AdapterBank(model), 0, config, start_adapter(model, config, spread=0.0), examples)
    losses, finished = [], None
    for event in run.slices():
        if isinstance(event, StepDone):
            assert event.metrics.loss is not None
            losses.append(event.metrics.loss)
        if isinstance(event, Finished):
            finished = event
    assert finished is not None
    return losses, finished


def test_a_bf16_run_follows_the_fp32_loss_curve_of_the_cpu() -> None:
    expected, _ = run_losses(torch.device("cpu"), torch.float32)
    exact, _ = run_losses(CUDA, torch.float32)
    losses, finished = run_losses(CUDA, torch.bfloat16)
    print(
        f"steps {len(losses)}: cpu fp32 {expected[0]:.4f} to {expected[-1]:.4f}, "
        f"cuda bf16 {losses[0]:.4f} to {losses[-1]:.4f}"
    )
    assert exact == pytest.approx(expected, rel=1e-3)
    assert losses == pytest.approx(expected, rel=2e-2)
    assert losses[-1] < losses[0]
    assert finished.result.steps == len(losses)


def test_decoding_token_by_token_equals_one_pass() -> None:
    model = make_model(SMALL, CUDA, torch.float32)
    bank = AdapterBank(model)
    bank.load(0, start_adapter(model, make_config(), spread=0.02))
    prompts = [list(w.token_ids) for w in windows(SMALL, [33, 7, 60], seed=9)]
    slots = [0, -1, 0]
    with torch.no_grad():
        whole = model.logits(model.hidden(pack(prompts, slots, CUDA)))
        caches = [model.new_cache(len(p)) for p in prompts]
        model.hidden(pack([p[:-1] for p in prompts], slots, CUDA), caches)
        last = model.logits(
            model.hidden(pack([p[-1:] for p in prompts], slots, CUDA, [len(p) - 1 for p in prompts]), caches)
        )
        ends = torch.tensor([len(p) for p in prompts]).cumsum(0) - 1
    error = float((whole[ends.to(CUDA)] - last).abs().max())
    print(f"decode against one pass: max difference {error:.2e}")
    assert error <= 1e-4


def test_figures_of_one_training_step() -> None:
    """Not a bar, a reading: tokens per second and peak memory at SmolLM2's shape, with all seven targets at rank 16."""
    config = make_config()
    model = make_model(SMOLLM2, CUDA, torch.bfloat16)
    bank = AdapterBank(model)
    bank.load(0, start_adapter(model, config, spread=0.0), trainable=True)
    batch = windows(SMOLLM2, [1024] * 8, seed=1)
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(8):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        loss = nll_sum(model, batch, 0)
        loss.backward()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    median = sorted(times[3:])[len(times[3:]) // 2]
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(
        f"{torch.cuda.get_device_name()}: 8x1024 forward and backward {median:.1f} ms, "
        f"{8192 / median * 1e3:.0f} tok/s, peak {peak:.1f} GiB"
    )
    assert math.isfinite(loss.item())
