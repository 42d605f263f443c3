"""What a fake worker can do with a job: publish a version, roll back, fail, leave checkpoints."""

import numpy as np
from safetensors.numpy import save

from app.contracts.adapter_format import peft_config
from app.contracts.training import TrainingResult
from app.db import queue
from app.db.session import Database
from tests.tiny_base import tiny_base

RESULT = TrainingResult(
    losses=[2.5, 1.5, 1.0],
    grad_norm=0.7,
    perplexity_before=9.0,
    perplexity_after=3.0,
    gate_data="training_text",
    rolled_back=False,
    rollback_reason=None,
    steps=3,
    trained_tokens=42,
    duration_ms=123,
)
ROLLED_BACK = RESULT.model_copy(
    update={"rolled_back": True, "rollback_reason": "perplexity rose from 9.0 to 20.0", "perplexity_after": 20.0}
)


def adapter_files(rank: int, alpha: float, targets: list[str]) -> tuple[bytes, dict[str, object]]:
    """Return safetensors and configuration of an adapter on the tiny base with zero B."""
    shapes = {n: s for n, s in tiny_base().modules.items() if n.rpartition(".")[2] in targets}
    tensors = {}
    for name, shape in shapes.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = np.ones((rank, shape.in_features), np.float32)
        tensors[f"base_model.model.{name}.lora_B.weight"] = np.zeros((shape.out_features, rank), np.float32)
    config = peft_config(
        tiny_base(),
        rank=rank,
        alpha=alpha,
        targets=targets,
        ranks=dict.fromkeys(shapes, rank),
        scales=dict.fromkeys(shapes, alpha / rank),
    )
    return save(tensors), config


def publish(database: Database, job: queue.ClaimedJob) -> None:
    """End the job well, with a checkpoint at step 3 and a new version."""
    lora = job.config.lora
    assert lora is not None
    weights, config = adapter_files(min(lora.rank, 16), lora.alpha, lora.targets)
    queue.save_checkpoint(database, job.lease, 3, weights, config, {"train_loss": 1.5})
    version = queue.NewVersion(weights=weights, config=config, metrics=RESULT.model_dump())
    queue.finish_succeeded(database, job.lease, RESULT, version)


def roll_back(database: Database, job: queue.ClaimedJob) -> None:
    """End the job without a version, as a failed gate does."""
    queue.finish_succeeded(database, job.lease, ROLLED_BACK, None)


def fail(database: Database, job: queue.ClaimedJob) -> None:
    """Fail the job."""
    queue.finish_failed(database, job.lease, {"code": "no_gradient", "message": "q_proj got none", "param": None})
