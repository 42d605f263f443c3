"""What an uploaded adapter may be: every refusal names the field, the tensor or the module."""

import pytest

from app.contracts.adapter_format import (
    PREFIX,
    AdapterFormatError,
    ModulePlan,
    embedding_keys,
    graft_part,
    linear_keys,
    own_config,
    peft_config,
    plan_adapter,
    targets_of,
    trainable_scalars,
)
from app.contracts.base_models import ModuleShape
from tests.tiny_base import tiny_base

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
MODULES = {Q: ModuleShape(out_features=8, in_features=6), DOWN: ModuleShape(out_features=6, in_features=10)}
EMBEDDING, HEAD, A_LOG, X_PROJ = "model.embed_tokens", "lm_head", "model.layers.1.mixer.A_log", "model.layers.1.mixer.x"
INFO = tiny_base().model_copy(
    update={
        "modules": MODULES,
        "vocab_size": 9,
        "hidden_size": 6,
        "embedding": EMBEDDING,
        "tied_head": HEAD,
        "tensors": {A_LOG: [4, 2], f"{X_PROJ}.weight": [3, 4]},
        "selective": [f"{X_PROJ}.weight"],
        "weights": {f"{Q}.weight": [8, 6], f"{EMBEDDING}.weight": [9, 6], A_LOG: [4, 2]},
    }
)
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
        plan_adapter({**CONFIG, **(config or {})}, SHAPES if shapes is None else shapes, INFO)
    return caught.value


def test_a_good_adapter_is_planned() -> None:
    assert plan_adapter(CONFIG, SHAPES, INFO).modules == {Q: (2, 2.0, A, B, False)}


def test_rslora_divides_by_the_root_of_the_rank() -> None:
    plan = plan_adapter({**CONFIG, "use_rslora": True}, SHAPES, INFO).modules
    assert plan[Q].scale == pytest.approx(4 / 2**0.5)


def test_patterns_match_whole_name_ends_and_the_first_wins() -> None:
    config = {**CONFIG, "rank_pattern": {"proj": 5, "q_proj": 3, ".*proj": 4}, "alpha_pattern": {"layers.0.*": 6}}
    plan = plan_adapter(config, {A: (3, 6), B: (8, 3)}, INFO).modules
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
        ({**SHAPES, "x.lora_A.weight": (2, 6)}, "x.lora_A.weight", "matches no module or tensor"),
        (
            {**SHAPES, f"{PREFIX}norm.lora_A.weight": (2, 6)},
            f"{PREFIX}norm.lora_A.weight",
            "matches no module or tensor",
        ),
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
        plan_adapter({**CONFIG, "target_modules": "(a+)+b"}, SHAPES, INFO.model_copy(update={"modules": modules}))


def test_a_published_configuration_is_planned_back() -> None:
    ranks, scales = {Q: 2, DOWN: 1}, {Q: 2.0, DOWN: 0.5}
    config = peft_config(INFO, rank=2, alpha=4.0, targets=["q_proj", "down_proj"], ranks=ranks, scales=scales)
    shapes = {**SHAPES, f"{PREFIX}{DOWN}.lora_A.weight": (1, 10), f"{PREFIX}{DOWN}.lora_B.weight": (6, 1)}
    plan = plan_adapter(config, shapes, INFO).modules
    assert {name: (p.rank, p.scale) for name, p in plan.items()} == {Q: (2, 2.0), DOWN: (1, 0.5)}


EMBEDDING_A, EMBEDDING_B = embedding_keys(EMBEDDING)
HEAD_A, HEAD_B = linear_keys(HEAD)
TIED = {EMBEDDING_A: (2, 9), EMBEDDING_B: (6, 2), HEAD_A: (2, 6), HEAD_B: (9, 2)}
TIED_CONFIG = {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}


def test_a_tied_embedding_is_one_module_with_a_twin() -> None:
    plan = plan_adapter({**CONFIG, **TIED_CONFIG}, TIED, INFO)
    assert plan.modules == {EMBEDDING: ModulePlan(2, 2.0, EMBEDDING_B, EMBEDDING_A, transposed=True)}
    assert plan.twins == {HEAD_A: EMBEDDING_B, HEAD_B: EMBEDDING_A}
    assert trainable_scalars(TIED, INFO) == 2 * (9 + 6)
    assert targets_of([*TIED, A, B, DELTA], INFO) == ["embeddings", "q_proj", "A_log"]


def test_an_untied_embedding_is_the_lookup_alone() -> None:
    lookup = {key: shape for key, shape in TIED.items() if key not in (HEAD_A, HEAD_B)}
    untied = INFO.model_copy(update={"tied_head": ""})
    plan = plan_adapter({**CONFIG, "target_modules": ["embed_tokens"]}, lookup, untied)
    assert (list(plan.modules), plan.twins) == ([EMBEDDING], {})
    with pytest.raises(AdapterFormatError, match="'lm_head' matches no module"):
        plan_adapter({**CONFIG, "target_modules": ["lm_head"]}, {HEAD_A: (2, 6), HEAD_B: (9, 2)}, untied)


def test_copies_of_the_frozen_base_are_passed_over() -> None:
    copies = {f"{PREFIX}{name}.base_layer.weight": (9, 6) for name in (EMBEDDING, HEAD)}
    assert plan_adapter({**CONFIG, **TIED_CONFIG}, TIED | copies, INFO) == plan_adapter(
        {**CONFIG, **TIED_CONFIG}, TIED, INFO
    )
    assert trainable_scalars(TIED | copies, INFO) == 2 * (9 + 6)
    resized = {f"{PREFIX}{EMBEDDING}.base_layer.weight": (10, 6)}
    assert "expected (9, 6)" in _refusal(TIED_CONFIG, TIED | resized).message
    assert "matches no module or tensor" in _refusal(None, SHAPES | copies).message


@pytest.mark.parametrize(
    ("change", "shapes", "words"),
    [
        ({"target_modules": ["embed_tokens"]}, {EMBEDDING_A: (2, 9), EMBEDDING_B: (6, 2)}, f"adapts {EMBEDDING} alone"),
        ({"target_modules": ["lm_head"]}, {HEAD_A: (2, 6), HEAD_B: (9, 2)}, "adapts lm_head alone"),
        ({"target_modules": ["embed_tokens"]}, TIED, "target_modules does not name"),
        (TIED_CONFIG, {}, f"{HEAD_A} is missing"),
        (TIED_CONFIG, TIED | {EMBEDDING_A: (9, 2)}, "has shape (9, 2), expected (2, 9)"),
        (TIED_CONFIG, TIED | {HEAD_B: (9, 3)}, "has shape (9, 3), expected (9, 2)"),
        ({**TIED_CONFIG, "alpha_pattern": {"lm_head": 3}}, TIED, "their scales must be equal"),
    ],
)
def test_an_embedding_that_is_not_what_it_seems_is_refused(
    change: dict[str, object], shapes: dict[str, tuple[int, ...]], words: str
) -> None:
    assert words in _refusal(change, shapes).message


def test_all_linear_leaves_the_embedding_out() -> None:
    shapes = {**SHAPES, f"{PREFIX}{DOWN}.lora_A.weight": (2, 10), f"{PREFIX}{DOWN}.lora_B.weight": (6, 2)}
    assert set(plan_adapter({**CONFIG, "target_modules": "all-linear"}, shapes, INFO).modules) == {Q, DOWN}


DELTA = f"graft.delta.{A_LOG}"


def test_dense_deltas_stand_beside_the_factors_or_alone() -> None:
    beside = plan_adapter({**CONFIG, **graft_part("lora")}, {**SHAPES, DELTA: (4, 2)}, INFO)
    assert (list(beside.modules), beside.dense, beside.mode) == ([Q], {A_LOG: DELTA}, "lora")
    selective = f"graft.delta.{X_PROJ}.weight"
    alone = plan_adapter(own_config(INFO, rank=1, alpha=1.0) | graft_part("wsla"), {selective: (3, 4)}, INFO)
    assert (alone.modules, alone.dense, alone.mode) == ({}, {f"{X_PROJ}.weight": selective}, "wsla")
    assert trainable_scalars({**SHAPES, DELTA: (4, 2)}, INFO) == 2 * 6 + 8 * 2 + 4 * 2


@pytest.mark.parametrize(
    ("graft", "shapes", "words"),
    [
        ({}, {DELTA: (4, 2)}, "does not announce deltas in 'graft'"),
        (graft_part("lora"), {DELTA: (2, 4)}, "has shape (2, 4), expected (4, 2)"),
        (graft_part("lora"), {f"graft.delta.{Q}.weight": (8, 6)}, "no tensor of the base model that can have"),
        ({"graft": {"mode": "half"}}, {}, "adapter_config.json: graft.mode:"),
        ({"graft": {"mode": "lora", "extra": 1}}, {}, "adapter_config.json: graft.extra:"),
        ({"graft": 3}, {}, "adapter_config.json: graft:"),
    ],
)
def test_a_delta_that_does_not_fit_is_named(
    graft: dict[str, object], shapes: dict[str, tuple[int, ...]], words: str
) -> None:
    assert words in _refusal(graft, SHAPES | shapes).message


WHOLE = {f"{Q}.weight": (8, 6), f"{EMBEDDING}.weight": (9, 6), A_LOG: (4, 2)}


def test_a_whole_checkpoint_has_every_tensor_and_no_other() -> None:
    config = own_config(INFO, rank=1, alpha=1.0) | graft_part("full")
    assert plan_adapter(config, WHOLE, INFO).own == tuple(sorted(WHOLE))
    assert trainable_scalars(WHOLE, INFO) == 48 + 54 + 8
    for shapes, words in (
        ({**WHOLE, "lm_head.weight": (9, 6)}, "tensor lm_head.weight matches no module or tensor"),
        ({name: shape for name, shape in WHOLE.items() if name != A_LOG}, f"tensor {A_LOG} is missing"),
        (WHOLE | {A_LOG: (4, 3)}, f"tensor {A_LOG} has shape (4, 3)"),
    ):
        with pytest.raises(AdapterFormatError) as caught:
            plan_adapter(config, shapes, INFO)
        assert words in caught.value.message
