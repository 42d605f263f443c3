"""What an uploaded adapter may be: every refusal names the field, the tensor or the module."""

import numpy as np
import pytest
from safetensors.numpy import save

from app.contracts.adapter_format import PREFIX, AdapterFormatError, peft_config, plan_adapter, tensor_shapes
from app.contracts.base_models import ModuleShape

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
MODULES = {Q: ModuleShape(out_features=8, in_features=6), DOWN: ModuleShape(out_features=6, in_features=10)}
CONFIG: dict[str, object] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 2,
    "lora_alpha": 4,
    "target_modules": ["q_proj"],
}
A, B = f"{PREFIX}{Q}.lora_A.weight", f"{PREFIX}{Q}.lora_B.weight"
SHAPES = {A: (2, 6), B: (8, 2)}


def _refusal(
    config: dict[str, object] | None = None, shapes: dict[str, tuple[int, ...]] | None = None
) -> AdapterFormatError:
    with pytest.raises(AdapterFormatError) as caught:
        plan_adapter({**CONFIG, **(config or {})}, SHAPES if shapes is None else shapes, MODULES)
    return caught.value


def test_a_good_adapter_is_planned() -> None:
    assert plan_adapter(CONFIG, SHAPES, MODULES) == {Q: (2, 2.0, A, B)}


def test_rslora_divides_by_the_root_of_the_rank() -> None:
    plan = plan_adapter({**CONFIG, "use_rslora": True}, SHAPES, MODULES)
    assert plan[Q].scale == pytest.approx(4 / 2**0.5)


def test_patterns_match_whole_name_ends_and_the_first_wins() -> None:
    config = {**CONFIG, "rank_pattern": {"proj": 5, "q_proj": 3, ".*proj": 4}, "alpha_pattern": {"layers.0.*": 6}}
    plan = plan_adapter(config, {A: (3, 6), B: (8, 3)}, MODULES)
    assert (plan[Q].rank, plan[Q].scale) == (3, 2.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
        ({"task_type": "SEQ_CLS"}, "task_type 'SEQ_CLS' is not supported"),
        ({"use_dora": True}, "use_dora is not supported"),
        ({"bias": "all"}, "bias 'all' is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is not supported"),
        ({"lora_bias": True}, "lora_bias is not supported"),
        ({"layers_to_transform": [0]}, "layers_to_transform is not supported"),
        ({"some_future_feature": {"x": 1}}, "some_future_feature is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa' is not supported"),
        ({"r": 0}, "adapter_config.json: r:"),
        ({"r": 4096}, "adapter_config.json: r:"),
        ({"lora_alpha": float("inf")}, "adapter_config.json: lora_alpha:"),
        ({"target_modules": None}, "adapter_config.json: target_modules"),
        ({"target_modules": ["in_proj"]}, "'in_proj' matches no module"),
        ({"target_modules": "no_such.*"}, "target_modules matches no module"),
        ({"target_modules": "(unclosed"}, "target_modules: '(unclosed' is not a usable pattern"),
        ({"rank_pattern": {"q_proj": 0}}, f"rank 0 of {Q} is not in 1..512"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unsupported_configuration_is_refused_by_name(change: dict[str, object], words: str) -> None:
    assert words in _refusal(change).message


@pytest.mark.parametrize(
    ("shapes", "tensor", "words"),
    [
        ({A: (2, 6)}, B, "is missing"),
        ({B: (8, 2)}, A, "is missing"),
        ({}, A, "target_modules names its module"),
        ({**SHAPES, A: (3, 6)}, A, "has shape (3, 6), expected (2, 6)"),
        ({**SHAPES, B: (2, 8)}, B, "has shape (2, 8), expected (8, 2)"),
        ({**SHAPES, B: (16,)}, B, "has shape (16,), expected (8, 2)"),
        ({**SHAPES, "x.lora_A.weight": (2, 6)}, "x.lora_A.weight", "matches no linear module"),
        ({**SHAPES, f"{PREFIX}lm_head.lora_A.weight": (2, 6)}, f"{PREFIX}lm_head.lora_A.weight", "matches no linear"),
        (
            {**SHAPES, f"{PREFIX}{DOWN}.lora_A.weight": (2, 10)},
            f"{PREFIX}{DOWN}.lora_A.weight",
            "target_modules does not name",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(shapes: dict[str, tuple[int, ...]], tensor: str, words: str) -> None:
    error = _refusal(shapes=shapes)
    assert error.tensor == tensor
    assert tensor in error.message
    assert words in error.message


def test_a_hostile_pattern_takes_linear_time() -> None:
    modules = {"a" * 4000: ModuleShape(out_features=8, in_features=6)}
    with pytest.raises(AdapterFormatError, match="matches no module"):
        plan_adapter({**CONFIG, "target_modules": "(a+)+b"}, SHAPES, modules)


def test_shapes_are_read_and_contents_checked() -> None:
    good = {"x": np.ones((2, 3), np.float32), "y": np.zeros(4, np.float16)}
    assert tensor_shapes(save(good)) == {"x": (2, 3), "y": (4,)}
    for bad in (np.nan, np.inf):
        with pytest.raises(AdapterFormatError, match="tensor y holds a value that is not finite") as caught:
            tensor_shapes(save({**good, "y": np.array([1, bad], np.float32)}))
        assert caught.value.tensor == "y"
    with pytest.raises(AdapterFormatError, match="tensor z has type I64"):
        tensor_shapes(save({"z": np.ones(2, np.int64)}))


@pytest.mark.parametrize(("bits", "finite"), [(0x7F80, False), (0xFF81, False), (0x7F7F, True), (0x3F80, True)])
def test_bfloat16_values_are_checked_too(bits: int, finite: bool) -> None:
    header = b'{"w":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
    data = len(header).to_bytes(8, "little") + header + bits.to_bytes(2, "little")
    if finite:
        assert tensor_shapes(data) == {"w": (1,)}
    else:
        with pytest.raises(AdapterFormatError, match="tensor w holds a value that is not finite"):
            tensor_shapes(data)


@pytest.mark.parametrize("data", [b"", b"\x80\x04\x95pickle", b"PK\x03\x04" + b"0" * 64, b"\xff" * 32])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(AdapterFormatError, match="not a safetensors file"):
        tensor_shapes(data)


def test_a_published_configuration_is_planned_back() -> None:
    ranks, scales = {Q: 2, DOWN: 1}, {Q: 2.0, DOWN: 0.5}
    config = peft_config(base_model="m", rank=2, alpha=4.0, targets=["q_proj", "down_proj"], ranks=ranks, scales=scales)
    shapes = {**SHAPES, f"{PREFIX}{DOWN}.lora_A.weight": (1, 10), f"{PREFIX}{DOWN}.lora_B.weight": (6, 1)}
    plan = plan_adapter(config, shapes, MODULES)
    assert {name: (p.rank, p.scale) for name, p in plan.items()} == {Q: (2, 2.0), DOWN: (1, 0.5)}
