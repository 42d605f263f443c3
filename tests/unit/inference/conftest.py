"""A tiny model with three visible adapters, and an engine that runs requests to their end."""

from collections import defaultdict
from collections.abc import Callable

import pytest
import torch

from app.contracts.adapters import AdapterRef
from app.contracts.inference import GenerateRequest, InferenceEvent, InferenceRequest, SamplingParams
from app.contracts.training import LoRAConfig
from tests.tiny_model import save_tiny_model
from workers.inference.adapter_cache import AdapterCache, AdapterUnavailableError, SourceCounts
from workers.inference.engine import Engine
from workers.inference.prefixes import PrefixStore
from workers.inference.scheduler import Limits
from workers.inference.step_tokens import StepTokens
from workers.loading import LoadedBase, load_base_model
from workers.lora.adapter import AdapterWeights, init_adapter
from workers.lora.bank import AdapterBank

Events = list[InferenceEvent]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> LoadedBase:
    """The tiny model in float32."""
    directory = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    return load_base_model(f"hf:{directory}", model_id="tiny", device="cpu", dtype="float32", quantization="none")


@pytest.fixture(scope="session")
def adapters(base: LoadedBase) -> dict[str, AdapterWeights]:
    """Three adapters of different rank and targets, strong enough to change every answer."""
    made = {}
    for seed, (name, rank, targets) in enumerate(
        [("v1", 4, ["q_proj", "down_proj"]), ("v2", 2, base.info.default_targets), ("v3", 8, ["gate_proj", "v_proj"])]
    ):
        adapter = init_adapter(base.info.modules, LoRAConfig(rank=rank, alpha=rank, targets=targets, seed=seed))
        generator = torch.Generator().manual_seed(seed)
        for _, b_NR in adapter.tensors.values():
            b_NR.copy_(torch.randn(b_NR.shape, generator=generator) * 0.3)
        made[name] = adapter
    return made


def ref(version: str, tenant: str = "tnt-a") -> AdapterRef:
    """Pin a version by its name."""
    return AdapterRef(tenant_id=tenant, adapter_id="adp-1", version_id=version, weights_id=f"blob-{version}", config={})


def generate(
    request_id: str, prompt: list[int], adapter: str | None = None, tenant: str = "tnt-a", **sampling: object
) -> GenerateRequest:
    """A request, greedy for 8 tokens unless told otherwise."""
    params: dict[str, object] = {
        "max_tokens": 8, "temperature": 0, "top_p": 1, "top_k": 0, "seed": 0, "n": 1, "stop": [],
        "presence_penalty": 0, "frequency_penalty": 0, "logprobs": None, "prompt_logprobs": False,
    }  # fmt: skip
    return GenerateRequest(
        id=request_id,
        tenant_id=tenant,
        base_model="tiny",
        adapter=None if adapter is None else ref(adapter, tenant),
        prompt_token_ids=prompt,
        sampling=SamplingParams.model_validate(params | sampling),
    )


class Shelf:
    """A source that has every version at hand, but for those that are `coming` and those it does not know."""

    def __init__(self, adapters: dict[str, AdapterWeights]) -> None:
        self.adapters = adapters
        self.coming: set[str] = set()
        self.asked: list[str] = []
        self.prefetched: list[str] = []
        self.waits = 0

    def get(self, ref: AdapterRef) -> AdapterWeights | None:
        """Return a version by its name."""
        self.asked.append(ref.version_id)
        if ref.version_id in self.coming:
            return None
        if ref.version_id not in self.adapters:
            raise AdapterUnavailableError(404, "adapter_not_found", f"version {ref.version_id} is gone")
        return self.adapters[ref.version_id]

    def prefetch(self, ref: AdapterRef) -> None:
        """Note what was announced."""
        self.prefetched.append(ref.version_id)

    def wait(self, seconds: float) -> None:
        """Count how often somebody had nothing else to do."""
        self.waits += 1

    def counts(self) -> SourceCounts:
        """Nothing is counted here."""
        return SourceCounts()


class Harness:
    """An engine with its bank and adapters; versions that do not exist refuse to load."""

    def __init__(
        self,
        base: LoadedBase,
        adapters: dict[str, AdapterWeights],
        *,
        slots: int = 4,
        prefix_bytes: int = 0,
        **options: int,
    ) -> None:
        self.bank = AdapterBank(base.model)
        self.source = Shelf(adapters)
        limits = Limits(options.pop("max_sequences", 8), options.pop("state_bytes", None))
        prompts, read = options.pop("prefill_tokens", 16), options.pop("read_tokens", 512)
        tokens = StepTokens(prompts, options.pop("beside_tokens", prompts), read)
        cache = AdapterCache(range(slots), self.source, self.bank)
        self.prefixes = PrefixStore(prefix_bytes)
        self.engine = Engine(base.model, base.info, cache, self.prefixes, limits=limits, tokens=tokens)

    def run(self, *requests: InferenceRequest, stagger: int = 0) -> dict[str, Events]:
        """Run requests to their end, submitting the next one every `stagger` steps; return each one's events."""
        events: dict[str, Events] = defaultdict(list)
        waiting = list(requests)
        for step in range(2000):
            while waiting and (stagger == 0 or step % stagger == 0):
                self.engine.submit(waiting.pop(0))
                if stagger:
                    break
            for request_id, new in self.engine.step().items():
                events[request_id] += new
            if not waiting and not self.engine.busy:
                return dict(events)
        raise AssertionError("the requests did not end")


@pytest.fixture
def harness(base: LoadedBase, adapters: dict[str, AdapterWeights]) -> Callable[..., Harness]:
    """Make engines."""
    return lambda **options: Harness(base, adapters, **options)
