"""How serving grows with tenants: 1 to 64 of them, each with one stream and an adapter of its own. No peer.

Run `python benchmarks/growth.py`; `--model smollm2` or `--model mamba2` (random weights of the 130M shape) does one of
the two. All streams of a count are asked for at once and go through the worker's Engine, at most `--places` at a time;
the others wait, as they would at a worker. A short round before brings the adapters into their slots, so that loading
is not in the figures. The rate counts new tokens of all streams from the first request to the last token, prompts
included; gaps are those between tokens of the same stream, also while other prompts come in.
"""

import argparse
import statistics
import time
from collections.abc import Mapping

from base_models import load
from streams import heading, new_engine, percentile_ms, run_out, start_as_worker, stream, table

from app.contracts.base_models import BaseModelInfo
from workers.inference.engine import Engine
from workers.lora.bank import AdapterBank


def read(engine: Engine, info: BaseModelInfo, tenants: int, *, prompt: int, tokens: int) -> Mapping[str, str]:
    """Return the figures of so many tenants."""
    run_out(engine, [stream(info, number, prompt=8, tokens=2, name=f"warm {tenants} ") for number in range(tenants)])
    asked = [stream(info, number, prompt=prompt, tokens=tokens, name=f"{tenants} ") for number in range(tenants)]
    began = time.perf_counter()
    record = run_out(engine, asked)
    seconds = time.perf_counter() - began
    made = sum(map(len, record.times.values()))
    assert made == tenants * tokens, f"{made} tokens came of {tenants} streams"
    gaps = record.gaps()
    first = [times[0] - began for times in record.times.values()]
    return {
        "model": info.id,
        "tenants": str(tenants),
        "tok/s": f"{made / seconds:.1f}",
        "gap p50 ms": f"{percentile_ms(gaps, 50):.1f}",
        "gap p99 ms": f"{percentile_ms(gaps, 99):.1f}",
        "first token p50 s": f"{statistics.median(first):.2f}",
        "last first token s": f"{max(first):.2f}",
    }


def main() -> None:
    """Take the readings and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["smollm2", "mamba2"], action="append")
    parser.add_argument("--tenants", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--places", type=int, default=16)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    start_as_worker(options.threads)
    print(heading())
    print(
        f"prompt {options.prompt}, {options.tokens} new tokens, rank {options.rank} on all projections, "
        f"{options.places} places, greedy"
    )
    rows = []
    for name in options.model or ["smollm2", "mamba2"]:
        model, info = load(name)
        engine = new_engine(model, info, AdapterBank(model), rank=options.rank, places=options.places)
        print(f"{name}: {info.parameters / 1e6:.0f}M parameters, {info.dtype}", flush=True)
        for tenants in options.tenants:
            rows.append(read(engine, info, tenants, prompt=options.prompt, tokens=options.tokens))
            print(rows[-1], flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
