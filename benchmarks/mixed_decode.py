"""Greedy decoding of 16 streams at once: 16 adapters of rank 8, the base alone, and peft with `adapter_names`.

Run `python benchmarks/mixed_decode.py`. Graft's sides go through the worker's Engine: `adapters` gives each stream one
of its own on all projections, `base` none. `peft` generates the same count of tokens with 16 adapters in one PeftModel
and a name for each row; it runs in float32 unless told otherwise. A prompt is `--prompt` random tokens; prefill and all
steps are inside the time, and no stream ends early. With `--family mamba2` the shapes are Mamba-2 130M's with random
weights, and `adapters` takes the one projection that peft can adapt there.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from side_by_side import alternate, report, versions

TARGETS = {
    "smollm2": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "mamba2": ["in_proj"],
}
STREAMS, RANK = 16, 8


def rate_of(generate: Callable[[int], None], tokens: int) -> float:
    """Return the median tokens per second of three rounds, after a short one."""
    generate(4)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        generate(tokens)
        times.append(time.perf_counter() - began)
    return STREAMS * tokens / statistics.median(times)


def peft_generate(family: str, prompt: int, dtype: torch.dtype) -> Callable[[int], None]:
    """Return what generates with peft, a mixed batch of 16 adapters."""
    from peer_models import peer_model
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=RANK, lora_alpha=32, target_modules=TARGETS[family], task_type="CAUSAL_LM", init_lora_weights=False
    )
    model = get_peft_model(peer_model(family, dtype), config, adapter_name="0")
    for stream in range(1, STREAMS):
        model.add_adapter(str(stream), config)
    model.to(dtype).eval()
    ids = torch.randint(3, 49_000, (STREAMS, prompt), generator=torch.Generator().manual_seed(0))

    def generate(tokens: int) -> None:
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            adapter_names=[str(stream) for stream in range(STREAMS)],
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )
        assert out.shape[1] == prompt + tokens

    return generate


def graft_generate(family: str, prompt: int, *, adapted: bool) -> Callable[[int], None]:
    """Return what generates with the worker's engine."""
    from base_models import load
    from streams import new_engine, run_out, stream

    from workers.lora.bank import AdapterBank

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    model, info = load(family)
    info = info.model_copy(update={"default_targets": TARGETS[family]})
    engine = new_engine(model, info, AdapterBank(model), rank=RANK, places=STREAMS)
    rounds = iter(range(1000))

    def generate(tokens: int) -> None:
        name = f"round {next(rounds)} "
        asked = [
            stream(info, number, prompt=prompt, tokens=tokens, name=name, adapted=adapted) for number in range(STREAMS)
        ]
        record = run_out(engine, asked)
        assert sum(map(len, record.times.values())) == STREAMS * tokens

    return generate


def main() -> None:
    """Compare all sides, or run one when asked by the parent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=["peft", "base", "adapters"])
    parser.add_argument("--family", choices=["smollm2", "mamba2"], default="smollm2")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of peft")
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.side is None:
        print(versions(options.threads))
        common = ["--family", options.family, "--prompt", str(options.prompt), "--tokens", str(options.tokens)]
        common += ["--dtype", options.dtype]
        sides = {side: ["--side", side, *common] for side in ("peft", "base", "adapters")}
        rates = alternate(__file__, options.family, sides, repetitions=options.repetitions, threads=options.threads)
        for other in ("base", "peft"):
            print(f"{options.family}: 16 adapters against {other}: {rates['adapters'] / rates[other]:.2f}")
    elif options.side == "peft":
        report(rate_of(peft_generate(options.family, options.prompt, getattr(torch, options.dtype)), options.tokens))
    else:
        generate = graft_generate(options.family, options.prompt, adapted=options.side == "adapters")
        report(rate_of(generate, options.tokens))


if __name__ == "__main__":
    main()
