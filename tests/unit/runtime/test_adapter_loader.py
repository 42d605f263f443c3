"""Whatever kind a stored version is, its slot then computes what the version says."""

from pathlib import Path

import pytest
import torch

from app.contracts.adapters import AdapterRef
from app.db.repositories import adapters
from app.db.tables import AdapterVersion
from tests.tiny_model import save_tiny_model
from tests.unit.runtime.conftest import Room
from workers.inference.adapter_cache import AdapterUnavailableError
from workers.loading import LoadedBase, load_base_model
from workers.lora.adapter import AdapterWeights
from workers.lora.adapter_file import to_peft
from workers.models.batch import pack
from workers.runtime.adapter_loader import AdapterLoader

PROMPT = [5, 17, 80, 3, 44, 9]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> LoadedBase:
    """A model of the same shape with other weights."""
    directory: Path = save_tiny_model(tmp_path_factory.mktemp("other"), seed=1)
    return load_base_model(f"hf:{directory}", model_id="other", device="cpu", dtype="float32", quantization="none")


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


def logits(base: LoadedBase, slot: int) -> torch.Tensor:
    with torch.no_grad():
        return base.model.logits(base.model.hidden(pack([PROMPT], [slot], "cpu")), [slot] * len(PROMPT))


def test_a_version_of_mode_full_stands_in_the_bases_place(room: Room, other: LoadedBase) -> None:
    own = {name: weight.base.clone() for name, weight in other.model.weights().items()}
    config, weights = to_peft(AdapterWeights({}, {}, alpha=1.0, rank=1, targets=[], own=own), room.room.info)
    ref = store(room, config, weights)
    before = logits(room.room.base, -1)
    loader = AdapterLoader(room.database, room.room.bank, room.room.info)
    loader.load(ref, 0)
    assert (logits(room.room.base, 0) - logits(other, -1)).abs().max() < 1e-5
    assert (before - logits(other, -1)).abs().max() > 1e-1
    assert torch.equal(logits(room.room.base, -1), before)
    room.room.bank.clear(0)
    assert torch.equal(logits(room.room.base, 0), before)


def test_a_checkpoint_of_another_shape_is_refused_by_name(room: Room) -> None:
    own = {name: weight.base.clone() for name, weight in room.room.model.weights().items()}
    own["model.norm.weight"] = torch.ones(33)
    config, weights = to_peft(AdapterWeights({}, {}, alpha=1.0, rank=1, targets=[], own=own), room.room.info)
    ref = store(room, config, weights)
    with pytest.raises(AdapterUnavailableError, match=r"model\.norm\.weight has shape \(33,\), expected \(32,\)"):
        AdapterLoader(room.database, room.room.bank, room.room.info).load(ref, 0)
