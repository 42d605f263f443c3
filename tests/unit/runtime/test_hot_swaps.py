"""A thousand swaps of the active version under load: each answer is wholly that of the version its request pinned."""

import random
import threading
from collections import defaultdict
from types import TracebackType

import torch

from app.contracts.inference import DoneEvent, ErrorEvent, GenerateRequest, TextEvent
from app.db.repositories import adapters, base_models
from app.db.session import Database
from app.services.adapters import activate_version, roll_back
from app.services.model_names import resolve_model
from app.services.prompts import Sampling, prepare_completions
from app.text.tokenizer import tokenizer_for
from tests.unit.runtime.conftest import Room
from workers.inference.adapter_cache import AdapterCache
from workers.inference.engine import Engine
from workers.inference.prefixes import PrefixStore
from workers.inference.scheduler import Limits
from workers.lora.adapter import AdapterWeights
from workers.lora.adapter_file import to_peft
from workers.models.batch import pack
from workers.runtime.adapter_loader import AdapterLoader

SWAPS = 1000
VERSIONS = 3
IN_FLIGHT = 4
TOKENS = 4
OWN_SLOT = VERSIONS + 1
MODULES = [f"model.layers.{layer}.mlp.down_proj" for layer in range(2)]
PROMPTS = ["What is it?", "Tell me of the thing that was said before.", "Tell me of the thing that was said then."]
GREEDY = Sampling(
    max_tokens=TOKENS,
    temperature=0,
    top_p=1,
    top_k=0,
    seed=0,
    n=1,
    stop=[],
    presence_penalty=0,
    frequency_penalty=0,
    logprobs=None,
)


def _weights(version: int) -> AdapterWeights:
    generator = torch.Generator().manual_seed(version)
    tensors = {
        module: (torch.randn(2, 48, generator=generator), torch.randn(32, 2, generator=generator) * 0.5)
        for module in MODULES
    }
    return AdapterWeights(tensors, dict.fromkeys(MODULES, 1.0), alpha=2.0, rank=2, targets=["down_proj"])


def _register(room: Room) -> None:
    with room.database.write() as session:
        base_models.upsert(session, room.room.info)
        for version in range(1, VERSIONS + 1):
            config, weights = to_peft(_weights(version), room.room.info)
            adapters.add_uploaded_version(
                session, room.tenant, name="hot", base_model="tiny", weights=weights, config=config, metrics={}
            )


def _alone(room: Room, version: int, prompt: str) -> str:
    """What greedy decoding gives without cache, engine and neighbours."""
    model, tokenizer = room.room.model, tokenizer_for(room.room.info)
    room.room.bank.load(OWN_SLOT, _weights(version))
    ids = prompt_ids = tokenizer.encode(prompt)
    with torch.no_grad():
        for _ in range(TOKENS):
            row = model.hidden(pack([ids], [OWN_SLOT], "cpu"))[-1:]
            ids = [*ids, int(model.logits(row, [OWN_SLOT]).argmax())]
    return tokenizer.decode(ids[len(prompt_ids) :])


class Swapper:
    """Swaps in a thread of its own, one swap beside each round of the engine."""

    def __init__(self, url: str, tenant: str) -> None:
        self.rounds = threading.Barrier(2, timeout=60)
        self.error: BaseException | None = None
        self._database, self._tenant = Database(url), tenant
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> "Swapper":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self.rounds.abort()
        self._thread.join()
        self._database.dispose()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        chance, active = random.Random(1), VERSIONS
        try:
            for _ in range(SWAPS):
                self.rounds.wait()
                active = self._swap(chance, active)
        except BaseException as error:
            self.error = error
            self.rounds.abort()

    def _swap(self, chance: random.Random, active: int) -> int:
        with self._database.write() as session:
            if active > 1 and chance.random() < 0.5:
                wanted = active - 1
                roll_back(session, self._tenant, "hot", None)
            else:
                wanted = chance.choice([version for version in range(1, VERSIONS + 1) if version != active])
                activate_version(session, self._tenant, "hot", wanted)
        with self._database.read() as session:
            assert resolve_model(session, self._tenant, "hot").name == f"hot@{wanted}"
        return wanted


def test_a_thousand_swaps_under_load(room: Room, sqlite_url: str) -> None:
    _register(room)
    loader = AdapterLoader(room.database, room.room.info)
    cache = AdapterCache(range(VERSIONS), loader, room.room.bank)
    engine = Engine(room.room.model, room.room.info, cache, PrefixStore(10**6), limits=Limits(IN_FLIGHT))
    answers = {(f"hot@{v}", prompt): _alone(room, v, prompt) for v in range(1, VERSIONS + 1) for prompt in PROMPTS}
    assert len(set(answers.values())) == len(answers)
    asked: dict[str, tuple[str, str]] = {}
    pinned: dict[str, set[str]] = defaultdict(set)
    texts: dict[str, str] = defaultdict(str)
    ended: set[str] = set()

    def ask() -> GenerateRequest:
        prompt = PROMPTS[len(asked) % len(PROMPTS)]
        with room.database.read() as session:
            prepared = prepare_completions(session, room.tenant, "hot", [prompt], GREEDY, echo=False)
        [request] = prepared.requests
        assert request.adapter is not None
        asked[request.id] = prepared.model, prompt
        pinned[prepared.model].add(request.adapter.version_id)
        return request

    def work() -> None:
        for request_id, events in engine.step().items():
            for event in events:
                assert not isinstance(event, ErrorEvent), event
                texts[request_id] += event.text if isinstance(event, TextEvent) else ""
                if isinstance(event, DoneEvent):
                    ended.add(request_id)

    swapper = Swapper(sqlite_url, room.tenant)
    with swapper:
        for swaps in range(SWAPS):
            swapper.rounds.wait()
            if swaps % 2 == 0:
                engine.submit(ask())
            work()
    while engine.busy:
        work()
    loader.close()
    assert ended == set(asked)
    assert [request_id for request_id, key in asked.items() if texts[request_id] != answers[key]] == []
    assert len(asked) == SWAPS // 2
    assert len(pinned) == VERSIONS
    assert all(len(versions) == 1 for versions in pinned.values())
