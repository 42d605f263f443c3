"""Graft's side of a training comparison: the worker's own TrainingRun on SmolLM2 or on random weights."""

from collections.abc import Iterator, Mapping

from app.contracts.base_models import ModuleShape
from app.contracts.training import JobConfig, LoRAConfig, RollbackConfig, TrainingConfig, TrustRegionConfig
from app.text.tokenize import TokenizedExample
from workers.lora.adapter import init_adapter
from workers.lora.bank import AdapterBank
from workers.models.language_model import LanguageModel
from workers.training.events import StepDone
from workers.training.trainer import TrainingRun


def lora_run(
    model: LanguageModel,
    modules: Mapping[str, ModuleShape],
    bank: AdapterBank,
    slot: int,
    rows: list[list[int]],
    targets: list[str],
    *,
    rank: int,
    steps: int,
) -> TrainingRun:
    """Return a run of `steps` optimizer steps over `rows` of equal length; all tokens but the first are learnt."""
    length = len(rows[0])
    training = TrainingConfig(
        epochs=1, batch_size=len(rows), learning_rate=1e-4, seq_len=length, max_grad_norm=1.0, weight_decay=0.01,
        beta1=0.9, beta2=0.999, eps=1e-8, gradient_accumulation=1, warmup_steps=0,
    )  # fmt: skip
    lora = LoRAConfig(rank=rank, alpha=32, targets=targets, seed=0)
    config = JobConfig(
        mode="lora",
        seed=0,
        lora=lora,
        trust_region=TrustRegionConfig(max_delta=0.05),
        rollback=RollbackConfig(enabled=False, tolerance=1.25),
        training=training,
    )
    examples = [TokenizedExample(row, [0, *[1] * (length - 1)]) for row in rows] * steps
    return TrainingRun(model, bank, slot, config, init_adapter(modules, lora), examples)


def lora_steps(
    model: LanguageModel, modules: Mapping[str, ModuleShape], rows: list[list[int]], targets: list[str], count: int
) -> Iterator[StepDone]:
    """Yield `count` optimizer steps of a run of rank 16."""
    run = lora_run(model, modules, AdapterBank(model), 0, rows, targets, rank=16, steps=count)
    yield from (event for event in run.slices() if isinstance(event, StepDone))
