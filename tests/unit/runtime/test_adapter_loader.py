"""From database to host memory: whatever kind a version is, whoever asks, and whatever is wrong with it."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from sqlalchemy.exc import OperationalError

from app.contracts.adapters import AdapterRef
from app.db.repositories import adapters
from app.db.session import Database
from app.db.tables import AdapterVersion, BlobChunk
from tests.tiny_model import save_tiny_model
from tests.unit.runtime.conftest import Room
from workers.inference.adapter_cache import AdapterUnavailableError
from workers.loading import LoadedBase, load_base_model
from workers.lora.adapter import AdapterWeights
from workers.lora.adapter_file import to_peft
from workers.models.batch import pack
from workers.runtime.adapter_loader import AdapterLoader, load_version
from workers.runtime.weights_lru import bytes_of

PROMPT = [5, 17, 80, 3, 44, 9]
Loaders = Callable[..., AdapterLoader]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> LoadedBase:
    """A model of the same shape with other weights."""
    directory: Path = save_tiny_model(tmp_path_factory.mktemp("other"), seed=1)
    return load_base_model(f"hf:{directory}", model_id="other", device="cpu", dtype="float32", quantization="none")


@pytest.fixture
def loaders(room: Room) -> Iterator[Loaders]:
    """Make loaders on the room's database."""
    made: list[AdapterLoader] = []

    def make(database: Database | None = None, **options: int) -> AdapterLoader:
        made.append(AdapterLoader(database or room.database, room.room.info, **options))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


def store(room: Room, config: dict[str, object], weights: bytes) -> AdapterRef:
    """Store a version and return what a request for it pins."""
    with room.database.write() as session:
        version: AdapterVersion = adapters.add_uploaded_version(
            session, room.tenant, name="mine", base_model="tiny", weights=weights, config=config, metrics={}
        )
        return AdapterRef(
            tenant_id=room.tenant,
            adapter_id=version.adapter_id,
            version_id=version.id,
            weights_id=version.weights_id,
            config=dict(version.config),
        )


def own_norm(room: Room, value: float) -> AdapterRef:
    """Store a small version: the last norm filled with a value."""
    own = {name: weight.base.clone() for name, weight in room.room.model.weights().items()}
    own["model.norm.weight"].fill_(value)
    return store(room, *to_peft(AdapterWeights({}, {}, alpha=1.0, rank=1, targets=[], own=own), room.room.info))


def norm_of(weights: AdapterWeights) -> float:
    """Return the value it was made with."""
    return weights.own["model.norm.weight"][0].item()


def bring(loader: AdapterLoader, ref: AdapterRef) -> AdapterWeights:
    """Ask until a version is here."""
    while (weights := loader.get(ref)) is None:
        loader.wait(10)
    return weights


def logits(base: LoadedBase, slot: int) -> torch.Tensor:
    with torch.no_grad():
        return base.model.logits(base.model.hidden(pack([PROMPT], [slot], "cpu")), [slot] * len(PROMPT))


def test_a_version_of_mode_full_stands_in_the_bases_place(room: Room, other: LoadedBase) -> None:
    own = {name: weight.base.clone() for name, weight in other.model.weights().items()}
    config, weights = to_peft(AdapterWeights({}, {}, alpha=1.0, rank=1, targets=[], own=own), room.room.info)
    loaded = load_version(room.database, store(room, config, weights), room.room.info)
    before = logits(room.room.base, -1)
    room.room.bank.load(0, loaded)
    assert (logits(room.room.base, 0) - logits(other, -1)).abs().max() < 1e-5
    assert (before - logits(other, -1)).abs().max() > 1e-1
    assert torch.equal(logits(room.room.base, -1), before)
    room.room.bank.clear(0)
    assert torch.equal(logits(room.room.base, 0), before)
    assert room.room.bank.served_bytes(loaded) == 4 * sum(tensor.numel() for tensor in own.values())


def test_a_checkpoint_of_another_shape_is_refused_by_name(room: Room, loaders: Loaders) -> None:
    own = {name: weight.base.clone() for name, weight in room.room.model.weights().items()}
    own["model.norm.weight"] = torch.ones(33)
    config, weights = to_peft(AdapterWeights({}, {}, alpha=1.0, rank=1, targets=[], own=own), room.room.info)
    with pytest.raises(AdapterUnavailableError, match=r"model\.norm\.weight has shape \(33,\), expected \(32,\)"):
        bring(loaders(), store(room, config, weights))


def test_the_first_use_comes_from_the_database_and_the_next_from_memory(room: Room, loaders: Loaders) -> None:
    ref, loader = own_norm(room, 2), loaders()
    assert loader.get(ref) is None
    assert norm_of(bring(loader, ref)) == 2
    assert norm_of(bring(loader, ref)) == 2
    counts = loader.counts()
    assert (counts.database_loads, counts.host_hits, counts.host_versions, counts.failed_loads) == (1, 1, 1, 0)


def test_a_prefetched_version_is_there_when_it_is_asked_for(room: Room, loaders: Loaders) -> None:
    ref, loader = own_norm(room, 2), loaders()
    loader.prefetch(ref)
    loader.prefetch(ref)
    assert loader.counts().pending_loads <= 1
    loader.wait(10)
    assert norm_of(loader.get(ref) or pytest.fail("it is not there")) == 2
    loader.prefetch(ref)
    assert loader.counts().pending_loads == 0
    assert loader.counts().database_loads == 1


def test_memory_keeps_what_was_used_last_within_its_bytes(room: Room, loaders: Loaders) -> None:
    refs = [own_norm(room, value) for value in (1, 2, 3)]
    size = bytes_of(load_version(room.database, refs[0], room.room.info))
    loader = loaders(host_bytes=2 * size + 1)
    for ref in (refs[0], refs[1], refs[0], refs[2], refs[0]):
        bring(loader, ref)
    assert (loader.counts().database_loads, loader.counts().host_hits) == (3, 2)
    assert loader.counts().host_bytes == 2 * size
    assert norm_of(bring(loader, refs[1])) == 2
    assert loader.counts().database_loads == 4


def test_without_memory_for_it_a_version_is_served_all_the_same(room: Room, loaders: Loaders) -> None:
    refs, loader = [own_norm(room, value) for value in (1, 2)], loaders(host_bytes=0)
    assert [norm_of(bring(loader, ref)) for ref in refs] == [1, 2]
    assert loader.counts().host_versions == 1


class SlowDatabase:
    """Lets nobody read before `go`, and counts who reads at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.go = threading.Event()
        self.reading, self.most = 0, 0
        self._lock = threading.Lock()

    def read(self) -> object:
        """Wait, then read."""
        with self._lock:
            self.reading += 1
            self.most = max(self.most, self.reading)
        assert self.go.wait(30)
        with self._lock:
            self.reading -= 1
        return self._database.read()


def test_loads_are_bounded_and_those_beyond_begin_later(room: Room, loaders: Loaders) -> None:
    refs = [own_norm(room, value) for value in range(1, 7)]
    slow = SlowDatabase(room.database)
    loader = loaders(slow, threads=2, max_loads=3)
    assert [loader.get(ref) for ref in refs] == [None] * 6
    loader.wait(0)
    assert loader.counts().pending_loads == 3
    slow.go.set()
    assert [norm_of(bring(loader, ref)) for ref in reversed(refs)] == [6, 5, 4, 3, 2, 1]
    assert slow.most <= 2
    assert loader.counts().database_loads == 6


def test_loads_nobody_takes_make_way(room: Room, loaders: Loaders) -> None:
    refs, loader = [own_norm(room, value) for value in (1, 2, 3)], loaders(max_loads=2)
    for ref in refs[:2]:
        loader.prefetch(ref)
    while loader.counts().pending_loads:
        loader.wait(10)
    assert norm_of(bring(loader, refs[2])) == 3
    assert loader.counts().host_versions == 3


def test_a_damaged_version_fails_alone(room: Room, loaders: Loaders) -> None:
    good, bad, loader = own_norm(room, 1), own_norm(room, 2), loaders()
    with room.database.write() as session:
        chunk = session.get_one(BlobChunk, (bad.weights_id, 0))
        chunk.data = chunk.data[:-1] + bytes([chunk.data[-1] ^ 1])
    with pytest.raises(AdapterUnavailableError, match=r"no longer has the SHA-256") as caught:
        bring(loader, bad)
    assert (caught.value.status, caught.value.code) == (500, "adapter_unusable")
    assert norm_of(bring(loader, good)) == 1
    assert loader.counts().failed_loads == 1


def test_another_tenant_does_not_get_a_version_by_its_id(room: Room, loaders: Loaders) -> None:
    mine, loader = own_norm(room, 1), loaders()
    bring(loader, mine)
    with pytest.raises(AdapterUnavailableError) as caught:
        bring(loader, mine.model_copy(update={"tenant_id": "tnt-0"}))
    assert (caught.value.status, caught.value.code) == (404, "adapter_not_found")


class AwayDatabase:
    """Cannot be reached while `away`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.away = True

    def read(self) -> object:
        """Read, or fail."""
        if self.away:
            raise OperationalError("SELECT", None, Exception("connection refused"))
        return self._database.read()


def test_a_database_that_is_away_is_not_held_against_the_version(room: Room, loaders: Loaders) -> None:
    ref, database = own_norm(room, 1), AwayDatabase(room.database)
    loader = loaders(database)
    with pytest.raises(AdapterUnavailableError, match="try again") as caught:
        bring(loader, ref)
    assert (caught.value.status, caught.value.code) == (503, "database_unavailable")
    database.away = False
    assert norm_of(bring(loader, ref)) == 1


def test_what_nobody_foresaw_is_an_error_of_that_version(
    room: Room, loaders: Loaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, loader = own_norm(room, 1), loaders()
    with monkeypatch.context() as patch:
        patch.setattr("workers.runtime.adapter_loader.from_peft", lambda *_: 1 / 0)
        with pytest.raises(AdapterUnavailableError, match="cannot be served: it cannot be read"):
            bring(loader, ref)
    assert norm_of(bring(loader, ref)) == 1
