"""State-space, mixed and expert models on a real GPU: gradients of every target, decoding, and a figure.

Run with `pytest tests/gpu -s` on a machine with CUDA.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.gpu.test_cuda import CUDA, relative_error, windows
from tests.models.exactness import every_target
from workers.loading.architectures.evermind import read_config as evermind
from workers.loading.architectures.graft_hybrid import new_config
from workers.loading.architectures.graft_hybrid import read_config as hybrid
from workers.loading.architectures.jamba import read_config as read_jamba
from workers.loading.architectures.mamba import read_mamba
from workers.loading.architectures.mamba2 import read_config as read_mamba2
from workers.loading.initial_weights import initialise
from workers.lora.adapter import AdapterWeights
from workers.lora.bank import AdapterBank
from workers.models.batch import pack
from workers.models.config import ModelConfig
from workers.models.language_model import LanguageModel
from workers.training.loss import nll_sum

SIZES = {"vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 3}
LENGTHS = [200, 3, 77, 77]
EXPERTS = {"conv_kernel": 3, "expert_size": 96, "num_experts": 4, "top_k": 2}


JAMBA = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 3,
    "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 8,
}  # fmt: skip


def _mixture() -> ModelConfig:
    return hybrid(new_config("nano", "mamba1,mamba2,attention", 512))


CONFIGS: dict[str, Callable[[], ModelConfig]] = {
    "mamba": lambda: read_mamba({**SIZES, "state_size": 16}),
    "mamba2": lambda: read_mamba2({**SIZES, "state_size": 64, "num_heads": 4, "head_dim": 64, "n_groups": 2}),
    "evermind": lambda: evermind({**SIZES, **EXPERTS}),
    "jamba, experts": lambda: read_jamba(JAMBA),
    "mixture": _mixture,
}


def _model(kind: str, device: torch.device, dtype: torch.dtype, stored: torch.dtype) -> LanguageModel:
    """The same weights everywhere, rounded to `stored` first."""
    model = LanguageModel(CONFIGS[kind](), device, dtype)
    cpu = LanguageModel(CONFIGS[kind](), torch.device("cpu"), torch.float32)
    initialise(cpu, seed=0)
    for name, weight in cpu.weights().items():
        wide = weight.base * (3 if weight.base.ndim > 1 and "A_log" not in name and "conv" not in name else 1)
        model.weights()[name].base.copy_(wide.to(stored) if model.weights()[name].base.dtype == dtype else wide)
    model.freeze()
    return model


def _adapter(model: LanguageModel) -> AdapterWeights:
    """Every target, moved a little away from its start, as after some steps."""
    wild = every_target(model, seed=1, rank=4)
    tensors = {n: (a_RK / 0.3 * a_RK.shape[1] ** -0.5, b_NR * 0.05) for n, (a_RK, b_NR) in wild.tensors.items()}
    return replace(wild, tensors=tensors, dense={n: delta * 0.05 for n, delta in wild.dense.items()})


def _gradients(kind: str, device: torch.device, dtype: torch.dtype, stored: torch.dtype) -> dict[str, torch.Tensor]:
    model = _model(kind, device, dtype, stored)
    bank = AdapterBank(model)
    bank.load(0, _adapter(model), trainable=True)
    nll_sum(model, windows(model.config, LENGTHS, seed=3), 0).backward()
    return {name: p.grad.double().cpu() for name, p in bank.parameters(0).items() if p.grad is not None}


WIDE = [(kind, torch.float32, 2e-5) for kind in CONFIGS]
# Models with routed experts are not among them: their choice is not continuous, and rounding may choose others.
NARROW = [(kind, torch.bfloat16, 3e-2) for kind in ("mamba", "mamba2", "mixture")]


@pytest.mark.parametrize(("kind", "dtype", "bound"), [*WIDE, *NARROW])
def test_gradients_of_every_target_agree_with_float64(kind: str, dtype: torch.dtype, bound: float) -> None:
    expected = _gradients(kind, torch.device("cpu"), torch.float64, stored=dtype)
    got = _gradients(kind, CUDA, dtype, stored=dtype)
    assert got.keys() == expected.keys()
    worst, name = max((relative_error(got[n], expected[n]), n) for n in expected)
    everything = relative_error(
        torch.cat([got[n].flatten() for n in expected]), torch.cat([g.flatten() for g in expected.values()])
    )
    print(f"{kind} {dtype}: gradient {everything:.2e}, worst {worst:.2e} at {name} of {len(expected)}")
    assert everything <= bound


@pytest.mark.parametrize("kind", CONFIGS)
def test_decoding_token_by_token_equals_one_pass(kind: str) -> None:
    model = _model(kind, CUDA, torch.float32, torch.float32)
    AdapterBank(model).load(0, _adapter(model))
    prompts = [list(w.token_ids) for w in windows(model.config, [33, 7, 60], seed=9)]
    slots = [0, -1, 0]
    with torch.no_grad():
        whole = model.hidden(pack(prompts, slots, CUDA))
        caches = [model.new_cache(len(p)) for p in prompts]
        model.hidden(pack([p[:-1] for p in prompts], slots, CUDA), caches)
        starts = [len(p) - 1 for p in prompts]
        last = model.hidden(pack([p[-1:] for p in prompts], slots, CUDA, starts), caches)
    ends = torch.tensor([len(p) for p in prompts]).cumsum(0) - 1
    error = relative_error(last, whole[ends.to(CUDA)].double().cpu())
    print(f"{kind}: decode against one pass, relative difference {error:.2e}")
    assert error <= 1e-5


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_figures_of_one_training_step(kind: str) -> None:
    """Not a bar, a reading: the plain torch path on a GPU, before any kernel of its own."""
    sizes = {"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 24}
    config = (
        read_mamba({**sizes, "state_size": 16})
        if kind == "mamba"
        else read_mamba2({**sizes, "state_size": 128, "num_heads": 24, "head_dim": 64, "n_groups": 1})
    )
    model = LanguageModel(config, CUDA, torch.bfloat16)
    initialise(model, seed=0)
    model.freeze()
    bank = AdapterBank(model)
    bank.load(0, every_target(model, seed=1, rank=16), trainable=True)
    batch = windows(config, [512] * 4, seed=1)
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        nll_sum(model, batch, 0).backward()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    rate, peak = 4 * 512 / min(times), torch.cuda.max_memory_allocated() / 2**30
    print(f"{kind} 130M bf16, 4x512, every target, plain torch: {rate:.0f} tok/s, peak {peak:.2f} GiB")
    assert torch.isfinite(torch.stack([p.grad.norm() for p in bank.parameters(0).values() if p.grad is not None])).all()
