"""Resident memory of one training step of 24 layers at the 130M shapes, with and without activation checkpointing.

Run `python benchmarks/activation_checkpointing.py`. Each case runs in a process of its own: the peak of the step above
what was resident before it (random weights, a LoRA on every projection), and the step's time. The C library is told to
give freed blocks back at once, so that what is resident is what is in use; a worker keeps freed blocks to be faster.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

FAMILIES = ("mamba", "mamba2", "llama")


def _model(family: str) -> object:
    from tests.llama import llama_config
    from workers.models.language_model import LanguageModel

    if family != "llama":
        from train_ssm_cpu import random_model

        return random_model(family)
    config = llama_config(
        vocab_size=49_152, hidden_size=768, intermediate_size=2048, layers=24, heads=12, kv_heads=4, head_dim=64,
        context_length=2048, rope_theta=10000.0, norm_eps=1e-5, tied_head=True,
    )  # fmt: skip
    model = LanguageModel(config, torch.device("cpu"), torch.float32)
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.weights().items():
        weight.base.normal_(1.0 if "norm" in name else 0.0, 0.02, generator=generator)
    model.freeze()
    return model


def _memory(field: str) -> float:
    """Return VmRSS or VmHWM of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def measure(family: str, tokens: int, *, recompute: bool) -> dict[str, float]:
    """Return the step's peak above the memory before it, in MB, and its seconds."""
    from app.contracts.base_models import ModuleShape
    from app.contracts.training import LoRAConfig
    from workers.lora.adapter import init_modules
    from workers.lora.bank import AdapterBank
    from workers.training.dataset import Window
    from workers.training.loss import nll_sum

    model = _model(family)
    modules = model.linears()
    shapes = {n: ModuleShape(out_features=m.out_features, in_features=m.in_features) for n, m in modules.items()}
    targets = sorted({name.rpartition(".")[2] for name in shapes})
    bank = AdapterBank(model)
    bank.load(0, init_modules(shapes, LoRAConfig(rank=16, alpha=32, targets=targets, seed=0)), trainable=True)
    ids = torch.randint(3, 40_000, (tokens,), generator=torch.Generator().manual_seed(0)).tolist()
    nll_sum(model, [Window(tuple(ids[:8]), (0, *[1] * 7))], 0, recompute=recompute).backward()
    window = Window(tuple(ids), (0, *[1] * (tokens - 1)))
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before, began = _memory("VmRSS"), time.perf_counter()
    nll_sum(model, [window], 0, recompute=recompute).backward()
    return {"mb": _memory("VmHWM") - before, "seconds": time.perf_counter() - began}


def main() -> None:
    """Print a line a family, or measure one case when asked by the parent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024, help="a worker on a CPU takes about so many at once")
    parser.add_argument("--family", choices=FAMILIES)
    parser.add_argument("--recompute", action="store_true")
    options = parser.parse_args()
    if options.family:
        print(json.dumps(measure(options.family, options.tokens, recompute=options.recompute)))
        return
    for family in FAMILIES:
        command = [sys.executable, __file__, "--tokens", str(options.tokens), "--family", family]
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144"}
        outputs = [
            subprocess.check_output([*command, *flag], text=True, env=environment) for flag in ([], ["--recompute"])
        ]
        kept, again = (json.loads(output.splitlines()[-1]) for output in outputs)
        print(
            f"{family}, {options.tokens} tokens: {kept['mb']:.0f} MB, checkpointed {again['mb']:.0f} MB "
            f"({again['mb'] / kept['mb']:.2f}); {kept['seconds']:.1f} s, checkpointed {again['seconds']:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
