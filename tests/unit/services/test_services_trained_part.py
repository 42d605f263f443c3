"""What a job trains: modes, targets under every name they have, clamped ranks, and refusals by name."""

from typing import Any

import pytest

from app.contracts.base_models import BaseModelInfo, ModuleShape
from app.contracts.training import JobConfig
from app.core.errors import InvalidRequestError
from app.services.job_config import resolve_config
from app.services.job_options import JobOptions
from app.services.trained_part import ParentShape, trainable_parameters
from tests.tiny_base import tiny_base

PARENT = ParentShape("mine@1", rank=4, alpha=8.0, targets=["q_proj", "v_proj"], parameters=99)
MIXER = "backbone.layers.0.mixer"
SEEDS_TARGETS = ["wInProj", "wXProj", "wDtProj", "wOutProj", "wConv", "A_log", "embedding"]


def mamba_base(**changes: object) -> BaseModelInfo:
    """Return a state-space base of one layer: width 16, inner width 32, state 4, rank of the step 2."""
    shapes = {"in_proj": (64, 16), "x_proj": (10, 32), "dt_proj": (32, 2), "out_proj": (16, 32)}
    described = {
        "hidden_size": 16,
        "modules": {f"{MIXER}.{n}": ModuleShape(out_features=o, in_features=i) for n, (o, i) in shapes.items()},
        "embedding": "backbone.embeddings",
        "tensors": {
            f"{MIXER}.A_log": [32, 4],
            f"{MIXER}.D": [32],
            f"{MIXER}.dt_proj.bias": [32],
            f"{MIXER}.conv1d.weight": [32, 1, 4],
            f"{MIXER}.conv1d.bias": [32],
        },
        "selective": [f"{MIXER}.x_proj.weight"],
        "default_targets": list(shapes),
    }
    return tiny_base().model_copy(update=described | changes)


def resolve(info: BaseModelInfo, parent: ParentShape | None = None, **wishes: Any) -> JobConfig:
    return resolve_config("fine_tune", info, JobOptions.model_validate(wishes), 100, parent)


def targets_of(info: BaseModelInfo, *names: str) -> list[str]:
    lora = resolve(info, lora={"targets": list(names)}).lora
    assert lora is not None
    return lora.targets


def test_every_target_of_the_seeds_has_a_name_here() -> None:
    info = mamba_base()
    ours = ["in_proj", "x_proj", "dt_proj", "out_proj", "conv1d", "A_log", "embeddings"]
    assert targets_of(info, *SEEDS_TARGETS) == ours
    assert targets_of(info, "D", "dt_bias", "x_proj", "wXProj") == ["D", "dt_bias", "x_proj"]
    assert targets_of(mamba_base(embedding="model.embed_tokens"), "embed_tokens", "embeddings") == ["embeddings"]


def test_parameters_are_counted_for_every_kind_of_target_with_clamped_ranks() -> None:
    info = mamba_base()
    config = resolve(info, lora={"rank": 4, "targets": SEEDS_TARGETS})
    low_rank = 4 * (64 + 16) + 4 * (10 + 32) + 2 * (32 + 2) + 4 * (16 + 32) + 4 * (info.vocab_size + 16)
    assert trainable_parameters(info, config) == low_rank + 32 * 4 + 32 * 4 + 32
    assert trainable_parameters(info, resolve(info, mode="wsla")) == 10 * 32
    assert trainable_parameters(info, resolve(info, mode="full")) == info.parameters
    llama = tiny_base()
    clamped = resolve(llama, lora={"rank": 32, "targets": ["q_proj", "k_proj"]})
    assert trainable_parameters(llama, clamped) == 2 * (32 * (32 + 32) + 16 * (16 + 32))


def test_a_rank_above_a_targets_smaller_side_is_clamped_and_the_clamp_is_reported() -> None:
    lora = resolve(mamba_base(), lora={"rank": 12, "targets": ["in_proj", "x_proj", "dt_proj", "D"]}).lora
    assert lora is not None
    assert (lora.rank, lora.clamped) == (12, {"x_proj": 10, "dt_proj": 2})
    untouched = resolve(mamba_base(), lora={"rank": 2}).lora
    assert untouched is not None
    assert untouched.clamped == {}


def test_modes_have_their_own_defaults() -> None:
    info = mamba_base()
    rates = {m: resolve(info, mode=m).training.learning_rate for m in ("auto", "lora", "wsla", "full")}
    assert rates == {"auto": 2e-3, "lora": 2e-3, "wsla": 5e-4, "full": 2e-4}
    wsla = resolve(info, mode="wsla")
    assert (wsla.mode, wsla.lora, wsla.trust_region.max_delta) == ("wsla", None, 0.05)
    assert resolve(info, mode="full", lora={"seed": 3}).lora is None


@pytest.mark.parametrize(
    ("info", "wishes", "param", "says"),
    [
        (tiny_base(), {"mode": "wsla"}, "mode", "tiny-base has no selective projection"),
        (mamba_base(quantization="int8"), {"mode": "full"}, "mode", "those of tiny-base are int8"),
        (mamba_base(), {"mode": "wsla", "lora": {"rank": 4}}, "lora.rank", "no meaning in mode wsla"),
        (
            tiny_base(),
            {"lora": {"targets": ["q_proj", "A_log"]}},
            "lora.targets[1]",
            "'A_log' is no target of tiny-base",
        ),
        (mamba_base(), {"lora": {"targets": ["q_proj"]}}, "lora.targets[0]", "embeddings, A_log, D, dt_bias, conv1d"),
        (tiny_base(), {"lora": {"targets": ["embedding"]}}, "lora.targets[0]", "it has q_proj, k_proj"),
    ],
)
def test_what_a_base_cannot_train_is_refused_by_name(info: Any, wishes: Any, param: str, says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve(info, **wishes)
    assert caught.value.param == param
    assert says in caught.value.message


def test_a_continued_adapter_keeps_its_shape() -> None:
    info = tiny_base()
    for wishes in ({}, {"rank": 4}, {"rank": 4, "alpha": 8, "targets": ["v_proj", "q_proj"]}):
        lora = resolve(info, PARENT, lora=wishes).lora
        assert lora is not None
        assert (lora.rank, lora.alpha, lora.targets) == (4, 8.0, ["q_proj", "v_proj"])
    for other, param in (
        ({"rank": 5}, "lora.rank"),
        ({"alpha": 9}, "lora.alpha"),
        ({"targets": ["q_proj"]}, "lora.targets"),
    ):
        with pytest.raises(InvalidRequestError, match="mine@1 has") as caught:
            resolve(info, PARENT, lora=other)
        assert caught.value.param == param


def test_a_continued_adapter_keeps_its_mode() -> None:
    parent = ParentShape("mine@2", rank=1, alpha=1.0, targets=[], parameters=320, mode="wsla")
    assert resolve(mamba_base(), parent).mode == "wsla"
    with pytest.raises(InvalidRequestError, match="mine@2 was trained in mode wsla") as caught:
        resolve(mamba_base(), parent, mode="lora")
    assert caught.value.param == "mode"
