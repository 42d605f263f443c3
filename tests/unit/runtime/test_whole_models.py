"""A run of mode full publishes a complete checkpoint, and the next run goes on from it."""

from sqlalchemy import select

from app.contracts.adapter_format import read_graft
from app.contracts.training import JobConfig
from app.db.blobs import read_blob
from app.db.tables import JobCheckpoint
from tests.faults.jobs import config_of
from tests.unit.runtime.conftest import Room
from workers.lora.adapter import AdapterWeights
from workers.lora.adapter_file import from_peft


def full_config() -> JobConfig:
    """Return a run of every weight, at a rate that whole weights bear."""
    config = config_of(learning_rate=1e-3)
    return config.model_copy(update={"mode": "full", "lora": None})


def published(room: Room, number: int) -> AdapterWeights:
    """Return a version as a worker reads it."""
    version = room.versions()[number - 1]
    graft = read_graft(version.config)
    assert graft is not None
    assert graft.mode == "full"
    with room.database.read() as session:
        return from_peft(version.config, read_blob(session, room.tenant, version.weights_id), room.room.info)


def test_a_full_run_publishes_every_weight_and_goes_on_from_it(room: Room) -> None:
    job_id = room.enqueue(full_config())
    room.run(room.claim())
    assert room.job(job_id).status == "succeeded", room.job(job_id).error
    first = published(room, 1)
    assert first.own.keys() == room.room.info.weights.keys()
    base = room.room.model.weights()
    moved = [name for name, tensor in first.own.items() if not tensor.equal(base[name].base)]
    assert set(moved) == set(first.own)
    with room.database.read() as session:
        assert session.scalars(select(JobCheckpoint)).all() == []
    second = room.enqueue(full_config(), parent=room.versions()[0])
    room.run(room.claim())
    assert room.job(second).status == "succeeded", room.job(second).error
    (before, after) = (room.job(job_id).result, room.job(second).result)
    assert before is not None
    assert after is not None
    assert after["losses"][0] < before["losses"][0]
    assert room.versions()[1].parent_version == 1
