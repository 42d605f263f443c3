"""Time to the first token of a 16-token prompt on Mamba-2 at the 130M shapes: Graft beside transformers.generate.

Run `python benchmarks/first_token_ssm.py`. Random weights, batch 1; the peer in float32 after no warm-up but its own
import, Graft in the worker's dtype for this machine. The rate that is compared is prompts per second.
"""

import argparse
import statistics
import time

import torch
from side_by_side import compare, report
from train_ssm_cpu import peer_config, random_model

PROMPT = list(range(1000, 1016))


def peer() -> float:
    """Return seconds to the first token with transformers.generate."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(peer_config("mamba2", mambapy=False)).eval()
    ids = torch.tensor([PROMPT])
    began = time.perf_counter()
    model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=1)
    return time.perf_counter() - began


def graft() -> float:
    """Return the median seconds of prefill, head and argmax, as the worker's engine runs them."""
    from workers.models.batch import pack

    model = random_model("mamba2")
    times = []
    with torch.inference_mode():
        for _ in range(5):
            began = time.perf_counter()
            cache = model.new_cache(32)
            int(model.logits(model.hidden(pack([PROMPT], [-1], "cpu"), [cache])[-1:]).argmax())
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Compare, or run one side when asked by the parent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=["peer", "graft"])
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.side is None:
        cases = {"first token": {side: ["--side", side] for side in ("peer", "graft")}}
        compare(__file__, cases, repetitions=options.repetitions, threads=options.threads, tuned=False)
        return
    report(1 / (peer() if options.side == "peer" else graft()))


if __name__ == "__main__":
    main()
