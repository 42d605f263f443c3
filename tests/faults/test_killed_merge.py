"""A worker killed in the middle of a merge: the next one does it over, and there is one file in the end."""

import pytest
from sqlalchemy import func, select

from app.contracts.merge import MergeConfig
from app.contracts.training import LoRAConfig
from app.db.blobs import read_blob
from app.db.repositories import adapters, jobs
from app.db.tables import Blob, File
from tests.faults.conftest import Deployment
from workers.lora.adapter_file import to_peft
from workers.lora.new_adapter import new_lora


def enqueue_merge(deployment: Deployment) -> str:
    """Queue the merge of a version and return the job's id; the model must be registered."""
    info = deployment.wait_registered()
    adapter = new_lora(info, LoRAConfig(rank=2, alpha=4, targets=["q_proj"], seed=1))
    config, weights = to_peft(adapter, info)
    with deployment.database.write() as session:
        version = adapters.add_uploaded_version(
            session, deployment.tenant, name="mine", base_model="tiny", weights=weights, config=config, metrics={}
        )
        return jobs.create(
            session, deployment.tenant, kind="merge", model="mine@1", base_model="tiny", adapter_name="mine",
            adapter_id=version.adapter_id, parent_version_id=version.id, training_blob_id=version.weights_id,
            config=MergeConfig(format="hf", version=1, max_bytes=1 << 30), request={}, trainable_parameters=0,
            optimizer_bytes=0,
        ).id  # fmt: skip


@pytest.mark.parametrize("point", ["publish.before", "publish.before_commit", "publish.after"])
def test_a_killed_merge_takes_effect_once(deployment: Deployment, point: str) -> None:
    first = deployment.start(f"{point}:kill")
    job_id = enqueue_merge(deployment)
    first.wait_killed()
    deployment.start()
    job = deployment.wait_status(job_id, "succeeded")
    with deployment.database.read() as session:
        (file,) = session.scalars(select(File)).all()
        content = read_blob(session, deployment.tenant, file.blob_id)
        blobs = session.scalar(select(func.count()).select_from(Blob))
    assert job.result is not None
    assert (job.result["file"], job.result["bytes"]) == (file.id, len(content))
    assert blobs == 2, "the version's weights and the merged model, nothing half stored"
    assert job.attempts == (1 if point == "publish.after" else 2)
