"""A thousand registered adapters on 64 slots: each request is answered with its own, whatever made room for it."""

import random
from collections import defaultdict

import torch

from app.contracts.adapters import AdapterRef
from app.contracts.inference import ErrorEvent, GenerateRequest, TextEvent
from app.db.repositories import adapters
from app.text.tokenizer import tokenizer_for
from tests.unit.inference.conftest import generate
from tests.unit.runtime.conftest import Room
from workers.inference.adapter_cache import AdapterCache
from workers.inference.engine import Engine
from workers.inference.prefixes import PrefixStore
from workers.inference.scheduler import Limits
from workers.lora.adapter import AdapterWeights
from workers.lora.adapter_file import to_peft
from workers.models.batch import pack
from workers.runtime.adapter_loader import AdapterLoader

REGISTERED = 1000
SLOTS = 64
REQUESTS = 300
OWN_SLOT = SLOTS + 10
TOKENS = 5
MODULES = [f"model.layers.{layer}.mlp.down_proj" for layer in range(2)]


def _adapter(seed: int) -> AdapterWeights:
    """Factors loud enough that no two of them answer alike."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        module: (torch.randn(2, 48, generator=generator), torch.randn(32, 2, generator=generator) * 0.5)
        for module in MODULES
    }
    return AdapterWeights(tensors, dict.fromkeys(MODULES, 1.0), alpha=2.0, rank=2, targets=["down_proj"])


def _register(room: Room) -> list[AdapterRef]:
    refs = []
    with room.database.write() as session:
        for seed in range(REGISTERED):
            config, weights = to_peft(_adapter(seed), room.room.info)
            version = adapters.add_uploaded_version(
                session,
                room.tenant,
                name=f"adapter-{seed}",
                base_model="tiny",
                weights=weights,
                config=config,
                metrics={},
            )
            refs.append(
                AdapterRef(
                    tenant_id=room.tenant,
                    adapter_id=version.adapter_id,
                    version_id=version.id,
                    weights_id=version.weights_id,
                    config=dict(version.config),
                )
            )
    return refs


def _alone(room: Room, seed: int, prompt: list[int]) -> list[int]:
    """What greedy decoding gives without cache, engine and neighbours."""
    model = room.room.model
    room.room.bank.load(OWN_SLOT, _adapter(seed))
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(TOKENS):
            ids.append(int(model.logits(model.hidden(pack([ids], [OWN_SLOT], "cpu"))[-1:], [OWN_SLOT]).argmax()))
    return ids[len(prompt) :]


def test_each_request_gets_its_own_adapter(room: Room) -> None:
    refs, chance = _register(room), random.Random(0)
    loader = AdapterLoader(room.database, room.room.info, host_bytes=100_000)
    cache = AdapterCache(range(SLOTS), loader, room.room.bank)
    engine = Engine(room.room.model, room.room.info, cache, PrefixStore(0), limits=Limits(16))
    asked: dict[str, tuple[int, list[int]]] = {}
    texts: dict[str, str] = defaultdict(str)
    waiting: list[GenerateRequest] = []
    for number in range(REQUESTS):
        # Half of them for a few that are in demand, the others for any.
        seed = chance.randrange(20) if number % 2 else chance.randrange(REGISTERED)
        prompt = [chance.randrange(90) for _ in range(chance.randrange(1, 6))]
        asked[f"r{number}"] = seed, prompt
        plain = generate(f"r{number}", prompt, max_tokens=TOKENS)
        waiting.append(plain.model_copy(update={"adapter": refs[seed]}))
    while waiting or engine.busy:
        while waiting and engine.has_room:
            engine.submit(waiting.pop())
        for request_id, events in engine.step().items():
            for event in events:
                assert not isinstance(event, ErrorEvent), event
                texts[request_id] += event.text if isinstance(event, TextEvent) else ""
    loader.close()
    tokenizer = tokenizer_for(room.room.info)
    for request_id, (seed, prompt) in asked.items():
        assert texts[request_id] == tokenizer.decode(_alone(room, seed, prompt)), (request_id, seed)
    assert len(set(texts.values())) > REQUESTS // 2
    stats = cache.stats()
    assert stats.device_versions == SLOTS
    assert stats.evictions >= len({seed for seed, _ in asked.values()}) - SLOTS
    assert stats.source.host_bytes <= 100_000
    assert stats.device_hits > 0
    assert stats.source.failed_loads == 0
