"""How "auto" is decided, and what is refused with the limits named."""

from typing import Any

import pytest

from app.contracts.training import JobKind
from app.core.errors import InvalidRequestError
from app.services.job_config import optimizer_bytes, resolve_config
from app.services.job_options import JobOptions
from app.services.trained_part import ParentShape
from tests.tiny_base import TARGETS, tiny_base

PARENT = ParentShape("mine@1", rank=4, alpha=8.0, targets=["q_proj", "v_proj"], parameters=99)


def resolve(kind: JobKind = "fine_tune", examples: int = 100, parent: ParentShape | None = None, **wishes: Any) -> Any:
    return resolve_config(kind, tiny_base(), JobOptions.model_validate(wishes), examples, parent)


def test_everything_is_decided_when_nothing_is_asked() -> None:
    config = resolve()
    assert (config.lora.rank, config.lora.alpha, config.lora.targets) == (16, 32.0, TARGETS)
    assert config.lora.seed == config.seed
    assert (config.trust_region.max_delta, config.rollback.enabled, config.rollback.tolerance) == (0.05, True, 1.25)
    assert config.training.model_dump() == {
        "epochs": 6,
        "batch_size": 4,
        "learning_rate": 2e-3,
        "seq_len": 512,
        "max_grad_norm": 1.0,
        "weight_decay": 0.0,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "gradient_accumulation": 1,
        "warmup_steps": 8,
        "schedule": "cosine",
        "activation_checkpointing": False,
        "shard": None,
    }
    assert (config.mode, config.trust_region.max_relative_update) == ("lora", None)
    assert (resolve(examples=199).training.epochs, resolve(examples=200).training.epochs) == (6, 3)
    assert resolve("adapt", 1).training.epochs == 3
    assert resolve().seed != resolve().seed


@pytest.mark.parametrize(("examples", "steps"), [(1, 0), (100, 8), (1000, 10)])
def test_warmup_is_a_twentieth_of_the_steps_and_at_most_ten(examples: int, steps: int) -> None:
    assert resolve(examples=examples).training.warmup_steps == steps


def test_wishes_win_over_auto() -> None:
    config = resolve(
        seed=5,
        lora={"rank": 8, "alpha": 1.5, "targets": ["o_proj", "q_proj", "o_proj"], "seed": 9},
        hyperparameters={"n_epochs": 2, "learning_rate_multiplier": 0.5},
        training={"gradient_accumulation": 3, "warmup_steps": 0, "schedule": "constant"},
        trust_region={"max_delta": 0},
        rollback={"enabled": False},
    )
    assert (config.seed, config.lora.seed, config.lora.targets) == (5, 9, ["o_proj", "q_proj"])
    assert (config.training.epochs, config.training.learning_rate) == (2, 1e-3)
    assert config.training.schedule == "constant"
    assert (config.trust_region.max_delta, config.rollback.enabled) == (0, False)
    assert resolve(training={"epochs": 7}, hyperparameters={"n_epochs": 7}).training.epochs == 7


def test_retention_has_a_tolerance_where_there_is_a_file() -> None:
    assert resolve().rollback.retention_tolerance is None
    for wish, tolerance in (({}, 1.25), ({"retention_tolerance": 1.05}, 1.05)):
        options = JobOptions.model_validate({"rollback": wish})
        config = resolve_config("fine_tune", tiny_base(), options, 1, None, retention=True)
        assert config.rollback.retention_tolerance == tolerance
    with pytest.raises(InvalidRequestError, match="without a retention_file") as caught:
        resolve("adapt", rollback={"retention_tolerance": 1.05})
    assert caught.value.param == "rollback.retention_tolerance"


def test_a_run_may_be_one_of_several_shards_and_keep_one_layers_activations() -> None:
    config = resolve(
        training={"shard": {"index": 1, "count": 3}, "activation_checkpointing": True},
        trust_region={"max_delta": 0.01},
    )
    assert config.training.shard.model_dump() == {"index": 1, "count": 3}
    assert config.training.activation_checkpointing
    assert optimizer_bytes(100, config) == 34 * 8
    assert optimizer_bytes(100, resolve()) == 800
    assert resolve(trust_region={"max_relative_update": 0.02}).trust_region.max_relative_update == 0.02


@pytest.mark.parametrize(
    ("wishes", "param", "says"),
    [
        ({"lora": {"rank": 0}}, "lora.rank", "expected 1 to 512"),
        ({"lora": {"rank": 4096}}, "lora.rank", "got 4096"),
        (
            {"training": {"shard": {"index": 2, "count": 2}}},
            "training.shard.index",
            "expected 0 to 1 with count 2, got 2",
        ),
        (
            {"training": {"shard": {"index": 0, "count": 2}}, "trust_region": {"max_relative_update": 0.1}},
            "trust_region.max_relative_update",
            "leave one of them out",
        ),
        ({"lora": {"targets": ["nope"]}}, "lora.targets[0]", "it has q_proj, k_proj, v_proj"),
        ({"training": {"seq_len": 513}}, "training.seq_len", "expected 2 to 512"),
        (
            {"training": {"epochs": 2}, "hyperparameters": {"n_epochs": 3}},
            "training.epochs",
            "contradicts hyperparameters.n_epochs",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_limits(wishes: Any, param: str, says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve(**wishes)
    assert caught.value.param == param
    assert says in caught.value.message
