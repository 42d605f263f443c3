"""What readings of Graft's engine share: tenants with an adapter and a stream each, and when their tokens came.

The process is set up like a worker's. Adapters are made at random and lie at hand; there is no bus and no database.
"""

import os
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from itertools import pairwise

import torch

from app.cli.worker_environment import worker_environment
from app.contracts.adapters import AdapterRef
from app.contracts.base_models import BaseModelInfo
from app.contracts.inference import ErrorEvent, GenerateRequest, SamplingParams, TextEvent
from app.contracts.training import LoRAConfig
from workers.inference.adapter_cache import AdapterCache, SourceCounts
from workers.inference.engine import Emissions, Engine
from workers.inference.prefixes import PrefixStore
from workers.inference.scheduler import Limits
from workers.lora.adapter import AdapterWeights, init_adapter
from workers.lora.bank import AdapterBank
from workers.models.language_model import LanguageModel
from workers.runtime.free_memory import adapter_capacity, prefix_capacity, state_capacity

SLOTS = 64
"""Adapter slots of a worker, as by default."""


def start_as_worker(threads: int) -> None:
    """Start this script anew with a worker's environment, unless it has it; set threads and determinism as there."""
    wanted = worker_environment({**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"})
    if wanted != dict(os.environ):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.argv], wanted)
    torch.set_num_threads(threads)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True)


def heading() -> str:
    """Return versions, threads and how busy the machine is."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "tokenizers"))
    threads = f"{torch.get_num_threads()} threads"
    return f"{packages}; Python {platform.python_version()}; {threads}; load {os.getloadavg()[0]:.1f}"


def random_lora(info: BaseModelInfo, rank: int, seed: int) -> AdapterWeights:
    """Return an adapter on all projections that changes the answers a little."""
    weights = init_adapter(info.modules, LoRAConfig(rank=rank, alpha=32, targets=info.default_targets, seed=seed))
    generator = torch.Generator().manual_seed(seed)
    for _, b_NR in weights.tensors.values():
        b_NR.normal_(0, 0.01, generator=generator)
    return weights


class Shelf:
    """Makes the adapter of a tenant when it is asked for: an AdapterSource that never waits."""

    def __init__(self, info: BaseModelInfo, rank: int) -> None:
        self._info, self._rank = info, rank

    def get(self, ref: AdapterRef) -> AdapterWeights:
        """Return the tenant's weights."""
        return random_lora(self._info, self._rank, int(ref.version_id))

    def prefetch(self, ref: AdapterRef) -> None:
        """Nothing is fetched ahead."""

    def wait(self, seconds: float) -> None:
        """Nothing is on its way."""

    def counts(self) -> SourceCounts:
        """Nothing is counted."""
        return SourceCounts()


def new_engine(model: LanguageModel, info: BaseModelInfo, bank: AdapterBank, *, rank: int, places: int) -> Engine:
    """Return an engine made as a worker makes its own, with adapters from a shelf. No token ends its streams early."""
    info = info.model_copy(update={"eos_token_ids": []})
    cache = AdapterCache(range(SLOTS), Shelf(info, rank), bank, max_bytes=adapter_capacity(model.device))
    limits = Limits(places, state_capacity(model, info.context_length))
    return Engine(model, info, cache, PrefixStore(prefix_capacity(model.device)), limits=limits)


def stream(
    info: BaseModelInfo, tenant: int, *, prompt: int, tokens: int, name: str = "", adapted: bool = True
) -> GenerateRequest:
    """Return tenant's greedy request with its own adapter, or the base alone, and a prompt that differs by `name`."""
    request_id = f"{name}{tenant}"
    generator = torch.Generator().manual_seed(sum(map(ord, name)) * SLOTS + tenant)
    ids = torch.randint(3, min(info.vocab_size, 49_000), (prompt,), generator=generator).tolist()
    owner, version_id = f"tenant-{tenant}", str(tenant)
    adapter = AdapterRef(tenant_id=owner, adapter_id="adapter", version_id=version_id, weights_id=version_id, config={})
    return GenerateRequest(
        id=request_id,
        tenant_id=owner,
        base_model=info.id,
        adapter=adapter if adapted else None,
        prompt_token_ids=ids,
        sampling=SamplingParams(
            max_tokens=tokens, temperature=0, top_p=1, top_k=0, seed=0, n=1, stop=[],
            presence_penalty=0, frequency_penalty=0, logprobs=None, prompt_logprobs=False,
        ),
    )  # fmt: skip


class Record:
    """When each request's tokens came, in seconds of `time.perf_counter`."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)

    def step(self, engine: Engine) -> None:
        """Let the engine do one step and note what came. Raises RuntimeError on a request that failed."""
        self.note(engine.step())

    def note(self, emissions: Emissions) -> None:
        """Note events that came just now."""
        now = time.perf_counter()
        for request_id, events in emissions.items():
            for event in events:
                if isinstance(event, ErrorEvent):
                    raise RuntimeError(f"{request_id}: {event.message}")
                if isinstance(event, TextEvent):
                    self.times[request_id].append(now)

    def gaps(self, *, after: float = 0.0, before: float = float("inf")) -> list[float]:
        """Return the seconds between tokens of the same stream, of gaps that lie in this span."""
        return [
            later - sooner
            for times in self.times.values()
            for sooner, later in pairwise(times)
            if after <= sooner and later <= before
        ]


def run_out(engine: Engine, requests: Iterable[GenerateRequest]) -> Record:
    """Run requests to their ends, with nothing else to do; more than the engine takes in wait outside, as on a bus."""
    record, outside = Record(), list(requests)
    while outside or engine.busy:
        while outside and engine.has_room:
            engine.submit(outside.pop(0))
        record.step(engine)
    return record


def percentile_ms(seconds: list[float], percent: int) -> float:
    """Return a percentile in milliseconds."""
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1] * 1000


def table(rows: list[Mapping[str, str]]) -> str:
    """Return rows as a Markdown table; the first row's keys are its head."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
