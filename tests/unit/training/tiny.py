"""A tiny Llama with random weights, a few invented sequences, and a configuration to train it with."""

from math import prod

import torch

from app.contracts.base_models import BaseModelInfo, ModuleShape
from app.contracts.training import JobConfig
from app.text.tokenize import TokenizedExample
from tests.llama import llama_config
from tests.tiny_base import tiny_base
from workers.lora.adapter import AdapterWeights, init_adapter
from workers.lora.bank import AdapterBank
from workers.lora.new_adapter import new_full, new_lora, new_wsla
from workers.models.language_model import LanguageModel
from workers.training.trainer import TrainingRun

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
VOCAB = 40


def model_of(dtype: torch.dtype = torch.float32) -> LanguageModel:
    """Return the same model every time."""
    config = llama_config(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=8,
        context_length=64,
        rope_theta=10000.0,
        norm_eps=1e-5,
        tied_head=True,
    )
    model = LanguageModel(config, torch.device("cpu"), dtype)
    generator = torch.Generator().manual_seed(11)
    for name, weight in model.weights().items():
        if name.endswith("norm.weight"):
            weight.base.fill_(1.0)
        else:
            weight.base.copy_(torch.randn(weight.shape, generator=generator) * (0.5 if "embed" in name else 0.25))
    model.freeze()
    return model


def examples_of(count: int, *, length: int = 9, seed: int = 0) -> list[TokenizedExample]:
    """Return sequences that count upwards from a random token, some long, with the first tokens not counted."""
    generator = torch.Generator().manual_seed(seed)
    examples = []
    for i in range(count):
        n = length + i % 5
        first = int(torch.randint(0, VOCAB, (1,), generator=generator))
        ids = [(first + t) % VOCAB for t in range(n)]
        examples.append(TokenizedExample(ids, [0, 0, *[1] * (n - 2)]))
    return examples


def config_of(**changes: object) -> JobConfig:
    """Return a configuration; `changes` replace fields of whichever section has them."""
    sections: dict[str, dict[str, object]] = {
        "lora": {"rank": 4, "alpha": 8.0, "targets": TARGETS, "seed": 5},
        "trust_region": {"max_delta": 0.0, "max_relative_update": None},
        "rollback": {"enabled": True, "tolerance": 1.25, "retention_tolerance": None},
        "training": {
            "epochs": 2,
            "batch_size": 3,
            "learning_rate": 0.01,
            "seq_len": 32,
            "max_grad_norm": 1.0,
            "weight_decay": 0.01,
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-8,
            "gradient_accumulation": 1,
            "warmup_steps": 1,
            "schedule": "cosine",
            "activation_checkpointing": False,
            "shard": None,
        },
    }
    top: dict[str, object] = {"mode": "lora", "seed": 7}
    if changes.get("mode", "lora") != "lora":
        sections["lora"] = {}
    for key, value in changes.items():
        section = next((s for s in sections.values() if key in s and key != "seed"), top)
        section[key] = value
    return JobConfig.model_validate(top | sections | {"lora": sections["lora"] or None})


def info_of(model: LanguageModel) -> BaseModelInfo:
    """Return the base as a worker describes it, but norms are dense targets and keys the selective projection."""
    weights = {name: list(weight.shape) for name, weight in model.weights().items()}
    modules = {
        name: ModuleShape(out_features=linear.out_features, in_features=linear.in_features)
        for name, linear in model.linears().items()
    }
    return tiny_base().model_copy(
        update={
            "parameters": sum(map(prod, weights.values())),
            "vocab_size": VOCAB,
            "hidden_size": model.config.hidden_size,
            "modules": modules,
            "embedding": model.vocabulary.name,
            "weights": weights,
            "tensors": {name: shape for name, shape in weights.items() if name.endswith("layernorm.weight")},
            "selective": [name for name in weights if name.endswith("k_proj.weight")],
        }
    )


def start_in_mode(model: LanguageModel, config: JobConfig) -> AdapterWeights:
    """Return what a new run in the configuration's mode starts from."""
    if config.lora is not None:
        return new_lora(info_of(model), config.lora)
    return new_wsla(info_of(model)) if config.mode == "wsla" else new_full(model)


def start_of(model: LanguageModel, config: JobConfig) -> AdapterWeights:
    """Return a fresh adapter for the model."""
    shapes = {
        name: ModuleShape(out_features=linear.out_features, in_features=linear.in_features)
        for name, linear in model.linears().items()
    }
    assert config.lora is not None
    return init_adapter(shapes, config.lora)


def run_of(
    config: JobConfig,
    train: list[TokenizedExample],
    validation: list[TokenizedExample] | None = None,
    retention: list[TokenizedExample] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    start: AdapterWeights | None = None,
) -> tuple[TrainingRun, LanguageModel, AdapterBank]:
    """Return a run in slot 0 of a fresh model and bank."""
    model = model_of(dtype)
    bank = AdapterBank(model)
    start = start or start_of(model, config)
    return TrainingRun(model, bank, 0, config, start, train, validation, retention), model, bank


def same_adapter(a: AdapterWeights, b: AdapterWeights) -> bool:
    """Return whether two adapters are bit-identical."""
    ours, theirs = _tensors(a), _tensors(b)
    return ours.keys() == theirs.keys() and all(torch.equal(t, theirs[name]) for name, t in ours.items())


def _tensors(adapter: AdapterWeights) -> dict[str, torch.Tensor]:
    factors = {f"{n}.{i}": factor for n, pair in adapter.tensors.items() for i, factor in enumerate(pair)}
    return (
        factors | {f"{n}.delta": t for n, t in adapter.dense.items()} | {f"{n}.own": t for n, t in adapter.own.items()}
    )
