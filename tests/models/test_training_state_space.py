"""Every mode and target of training on state-space models: each parameter moves, and memory for time changes no bit."""

from math import prod
from typing import Any

import pytest
import torch

from app.contracts.base_models import BaseModelInfo, ModuleShape
from app.contracts.training import JobConfig
from app.services.job_config import resolve_config
from app.services.job_options import JobOptions
from app.services.trained_part import trainable_parameters
from tests.tiny_base import tiny_base
from tests.unit.training.tiny import VOCAB, examples_of
from workers.kernels.quantized_weight import Kind
from workers.loading.architectures.mamba import backbone
from workers.lora.adapter import AdapterWeights
from workers.lora.bank import AdapterBank
from workers.lora.new_adapter import new_full, new_lora, new_wsla
from workers.models.config import Mamba2Spec, MambaSpec
from workers.models.language_model import LanguageModel
from workers.training.events import Finished, StepDone
from workers.training.trainer import TrainingRun

SPECS = {
    "mamba": MambaSpec(inner=16, state=4, conv_kernel=3, dt_rank=2),
    "mamba2": Mamba2Spec(heads=4, head_dim=4, groups=2, state=4, conv_kernel=3, norm_eps=1e-5, norm_groups=1),
}
SEEDS_TARGETS = ["wInProj", "wXProj", "wDtProj", "wOutProj", "wConv", "A_log", "embedding"]
TARGETS = {
    "mamba": [*SEEDS_TARGETS, "D", "dt_bias"],
    "mamba2": ["in_proj", "out_proj", "conv1d", "A_log", "D", "dt_bias", "embeddings"],
}
EACH = [pytest.param(family, mode, id=f"{family}-{mode}") for family in SPECS for mode in ("lora", "wsla", "full")]


def _model(family: str, kind: Kind | None = None) -> LanguageModel:
    sizes = {"vocab_size": VOCAB, "hidden_size": 8, "num_hidden_layers": 2}
    model = LanguageModel(backbone(sizes, SPECS[family], tied=True), torch.device("cpu"), torch.float32)
    generator = torch.Generator().manual_seed(5)
    for name, weight in model.weights().items():
        noise = torch.randn(weight.shape, generator=generator) * (0.5 if "embed" in name else 0.3)
        weight.base.copy_(noise + ("norm" in name or name.endswith(".D")))
    for group in (g for s in model.sublayers() for g in s.mixer.groups() if kind is not None):
        group.quantize(kind)
    model.freeze()
    return model


def _info(model: LanguageModel) -> BaseModelInfo:
    weights = {name: list(weight.shape) for name, weight in model.weights().items()}
    modules = {
        name: ModuleShape(out_features=module.out_features, in_features=module.in_features)
        for name, module in model.linears().items()
    }
    described = {
        "parameters": sum(map(prod, weights.values())),
        "vocab_size": VOCAB,
        "hidden_size": model.config.hidden_size,
        "modules": modules,
        "embedding": model.vocabulary.name,
        "weights": weights,
        "tensors": {name: weights[name] for name, w in model.weights().items() if w.dense_target},
        "selective": [w.name for s in model.sublayers() for w in s.mixer.selective()],
        "default_targets": sorted({name.rpartition(".")[2] for name in modules}),
    }
    return tiny_base().model_copy(update=described)


def _start(model: LanguageModel, config: JobConfig) -> AdapterWeights:
    if config.lora is not None:
        return new_lora(_info(model), config.lora)
    return new_wsla(_info(model)) if config.mode == "wsla" else new_full(model)


def _config(info: BaseModelInfo, family: str, mode: str, **training: Any) -> JobConfig:
    wishes: dict[str, Any] = {"mode": mode, "seed": 3, "training": {"epochs": 3, **training}}
    wishes["trust_region"] = {"max_relative_update": 0.02}
    if mode == "lora":
        wishes["lora"] = {"rank": 4, "targets": TARGETS[family]}
    return resolve_config("fine_tune", info, JobOptions.model_validate(wishes), 8, None)


def _run(family: str, mode: str, kind: Kind | None = None, **training: Any) -> TrainingRun:
    model = _model(family, kind)
    config = _config(_info(model), family, mode, **training)
    return TrainingRun(model, AdapterBank(model), 0, config, _start(model, config), examples_of(8))


def _end(run: TrainingRun) -> Finished:
    *_, finished = run.slices()
    assert isinstance(finished, Finished)
    return finished


@pytest.mark.parametrize(("family", "mode"), EACH)
def test_a_run_moves_every_parameter_of_its_mode_and_learns(family: str, mode: str) -> None:
    run = _run(family, mode)
    before = {name: p.detach().clone() for name, p in run.state.weights.items()}
    finished = _end(run)
    assert [name for name, p in run.state.weights.items() if torch.equal(p, before[name])] == []
    result = finished.result
    assert not result.rolled_back
    assert result.losses[-1] < result.losses[0]
    model = _model(family)
    info = _info(model)
    assert result.trainable_parameters == trainable_parameters(info, _config(info, family, mode))
    suffixes = {name.rpartition(".")[2] for name in before}
    assert suffixes == {"lora": {"lora_A", "lora_B", "delta"}, "wsla": {"delta"}, "full": {"own"}}[mode]
    if mode == "wsla":
        selective = "x_proj" if family == "mamba" else "in_proj"
        assert list(before) == [f"backbone.layers.{i}.mixer.{selective}.weight.delta" for i in range(2)]


@pytest.mark.parametrize(("family", "mode"), EACH)
def test_activation_checkpointing_and_a_resume_change_no_bit(family: str, mode: str) -> None:
    expected = _run(family, mode)
    _end(expected)
    run = _run(family, mode, activation_checkpointing=True)
    taken = next(run.snapshot() for e in run.slices() if isinstance(e, StepDone) and e.metrics.step == 3)
    resumed = _run(family, mode, activation_checkpointing=True)
    resumed.restore(taken)
    _end(resumed)
    assert all(torch.equal(resumed.state.weights[name], p) for name, p in expected.state.weights.items())


@pytest.mark.parametrize("kind", ["fp16", "int8", "nf4"])
@pytest.mark.parametrize(
    ("family", "mode"), [("mamba", "lora"), ("mamba", "wsla"), ("mamba2", "lora"), ("mamba2", "wsla")]
)
def test_adapters_of_a_quantised_base_train_under_a_relative_bound(family: str, mode: str, kind: Kind) -> None:
    ends = []
    for recompute in (False, True):
        run = _run(family, mode, kind, activation_checkpointing=recompute)
        ends.append((_end(run), run.state.weights))
    (plain, weights), (_, again) = ends
    assert plain.result.losses[-1] < plain.result.losses[0]
    assert all(torch.equal(again[name], p) for name, p in weights.items())
    assert {p.dtype for p in weights.values()} == {torch.float32}
