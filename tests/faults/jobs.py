"""The job that fault tests run: short chats, 16 optimizer steps in two epochs, a snapshot every fourth."""

import json

from app.contracts.training import JobConfig, LoRAConfig, RollbackConfig, TrainingConfig, TrustRegionConfig

STEPS = 16


def chats(count: int) -> bytes:
    """Return that many short chats as JSONL."""
    lines = [
        {
            "messages": [
                {"role": "user", "content": f"what is the code of unit {i}?"},
                {"role": "assistant", "content": f"unit {i} has the code {i * 37 % 101}."},
            ]
        }
        for i in range(count)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


CHATS = chats(16)


def config_of(*, epochs: int = 2, tolerance: float = 1.25, learning_rate: float = 1e-2) -> JobConfig:
    """Return a configuration of batches of two."""
    return JobConfig(
        mode="lora",
        seed=7,
        lora=LoRAConfig(rank=4, alpha=8, targets=["q_proj", "v_proj", "down_proj"], seed=3),
        trust_region=TrustRegionConfig(max_delta=0.05),
        rollback=RollbackConfig(enabled=True, tolerance=tolerance),
        training=TrainingConfig(
            epochs=epochs,
            batch_size=2,
            learning_rate=learning_rate,
            seq_len=128,
            max_grad_norm=1.0,
            weight_decay=0.01,
            beta1=0.9,
            beta2=0.95,
            eps=1e-8,
            gradient_accumulation=1,
            warmup_steps=2,
        ),
    )
