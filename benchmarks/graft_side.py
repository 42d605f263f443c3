"""Graft's side of a training comparison: the worker's own TrainingRun, a LoRA of rank 16 on the given targets."""

from collections.abc import Iterator, Mapping

from app.contracts.base_models import ModuleShape
from app.contracts.training import JobConfig, LoRAConfig, RollbackConfig, TrainingConfig, TrustRegionConfig
from app.text.tokenize import TokenizedExample
from workers.lora.adapter import init_adapter
from workers.lora.bank import AdapterBank
from workers.models.language_model import LanguageModel
from workers.training.events import StepDone
from workers.training.trainer import TrainingRun


def lora_steps(
    model: LanguageModel, modules: Mapping[str, ModuleShape], rows: list[list[int]], targets: list[str], count: int
) -> Iterator[StepDone]:
    """Yield `count` optimizer steps, each over `rows` of equal length, with a loss on all positions but the first."""
    length = len(rows[0])
    training = TrainingConfig(
        epochs=1, batch_size=len(rows), learning_rate=1e-4, seq_len=length, max_grad_norm=1.0, weight_decay=0.01,
        beta1=0.9, beta2=0.999, eps=1e-8, gradient_accumulation=1, warmup_steps=0,
    )  # fmt: skip
    lora = LoRAConfig(rank=16, alpha=32, targets=targets, seed=0)
    config = JobConfig(
        mode="lora",
        seed=0,
        lora=lora,
        trust_region=TrustRegionConfig(max_delta=0.05),
        rollback=RollbackConfig(enabled=False, tolerance=1.25),
        training=training,
    )
    examples = [TokenizedExample(row, [0, *[1] * (length - 1)]) for row in rows] * count
    run = TrainingRun(model, AdapterBank(model), 0, config, init_adapter(modules, lora), examples)
    yield from (event for event in run.slices() if isinstance(event, StepDone))
