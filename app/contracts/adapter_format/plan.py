"""Checks an adapter file against its base model by names and shapes, and says what each tensor is for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.contracts.adapter_format.errors import AdapterFormatError
from app.contracts.adapter_format.names import (
    DELTA_PREFIX,
    base_copies,
    delta_shapes,
    embedding_keys,
    linear_keys,
    twin_keys,
)
from app.contracts.adapter_format.peft_config import MAX_RANK, GraftPart, PeftPart, by_pattern, read_graft, read_peft
from app.contracts.adapter_format.peft_config import targeted as targeted_modules
from app.contracts.base_models import BaseModelInfo
from app.contracts.training import Mode

Shapes = Mapping[str, tuple[int, ...]]


class ModulePlan(NamedTuple):
    """How one module is adapted: weight + scale · B A, and the tensors' names in the file.

    `transposed` is an embedding, of which the file holds Aᵀ and Bᵀ.
    """

    rank: int
    scale: float
    a_key: str
    b_key: str
    transposed: bool = False


@dataclass(frozen=True)
class AdapterPlan:
    """What a file holds: low-rank terms by module, deltas by tensor (with their names in the file), or whole tensors.

    `twins` names tensors that must be the transpose of another one.
    """

    modules: dict[str, ModulePlan] = field(default_factory=dict)
    dense: dict[str, str] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    twins: dict[str, str] = field(default_factory=dict)
    mode: Mode = "lora"


def plan_adapter(config: Mapping[str, object], shapes: Shapes, info: BaseModelInfo) -> AdapterPlan:
    """Check a configuration against tensor shapes and a base model; return what each tensor is for.

    Every tensor must belong to a targeted module or a tensor of the base, have its shape, and miss no counterpart.
    Raises AdapterFormatError naming the field, tensor or module.
    """
    graft = read_graft(config)
    if graft is not None and graft.mode == "full":
        return _whole(shapes, info)
    deltas = {key: shape for key, shape in shapes.items() if key.startswith(DELTA_PREFIX)}
    low_rank = {key: shape for key, shape in shapes.items() if key not in deltas}
    dense = _deltas(deltas, info, graft)
    if graft is not None and deltas and "peft_type" not in config:
        _refuse_unknown(low_rank, {})
        return AdapterPlan(dense=dense, mode=graft.mode)
    modules, twins = _low_rank(read_peft(config), low_rank, info)
    return AdapterPlan(modules, dense, (), twins)


def _whole(shapes: Shapes, info: BaseModelInfo) -> AdapterPlan:
    expected = {name: tuple(shape) for name, shape in info.weights.items()}
    _refuse_unknown(shapes, expected)
    for name in sorted(expected):
        if name not in shapes:
            raise AdapterFormatError(f"tensor {name} is missing: a complete checkpoint holds every tensor", name)
    _check_shapes(shapes, expected)
    return AdapterPlan(own=tuple(sorted(expected)), mode="full")


def _deltas(deltas: Shapes, info: BaseModelInfo, graft: GraftPart | None) -> dict[str, str]:
    expected = {DELTA_PREFIX + name: shape for name, shape in delta_shapes(info).items()}
    for key in sorted(deltas):
        if key not in expected:
            raise AdapterFormatError(f"tensor {key} matches no tensor of the base model that can have a delta", key)
        if graft is None:
            raise AdapterFormatError(f"tensor {key}: adapter_config.json does not announce deltas in 'graft'", key)
    _check_shapes(deltas, expected)
    return {key.removeprefix(DELTA_PREFIX): key for key in sorted(deltas)}


def _low_rank(config: PeftPart, shapes: Shapes, info: BaseModelInfo) -> tuple[dict[str, ModulePlan], dict[str, str]]:
    others = [name for name in (info.embedding, info.tied_head) if name]
    names = [*info.modules, *others]
    targets = targeted_modules(config, list(info.modules), others)
    if not targets:
        raise AdapterFormatError("target_modules matches no module of the base model")
    keys = {name: _keys(name, info) for name in names}
    if info.tied_head and targets & set(others):
        _check_tie(shapes, {name: keys[name] for name in others})
        targets |= set(others) if config.ensure_weight_tying else set()
    copies = base_copies(info) if targets & set(others) else {}
    _check_names(shapes, keys, targets, copies)
    ranks = by_pattern(config.rank_pattern, names, "rank_pattern")
    alphas = by_pattern(config.alpha_pattern, names, "alpha_pattern")
    plan = {}
    for name in names:
        if name not in targets:
            continue
        rank, alpha = int(ranks.get(name, config.r)), alphas.get(name, config.lora_alpha)
        if not 1 <= rank <= MAX_RANK:
            raise AdapterFormatError(f"rank_pattern: rank {rank} of {name} is not in 1..{MAX_RANK}", name)
        _check_shapes(shapes, _expected(name, rank, info))
        scale = alpha / (rank**0.5 if config.use_rslora else rank)
        plan[name] = ModulePlan(rank, scale, *_in_our_order(name, info), name == info.embedding)
    _check_shapes({key: shape for key, shape in shapes.items() if key in copies}, copies)
    head = plan.pop(info.tied_head, None)
    if head is None:
        return plan, {}
    if head.scale != plan[info.embedding].scale:
        where = f"{info.embedding} and {info.tied_head}"
        raise AdapterFormatError(f"alpha_pattern, rank_pattern: {where} are tied, so their scales must be equal", where)
    return plan, twin_keys(info)


def _check_tie(shapes: Shapes, keys: Mapping[str, tuple[str, str]]) -> None:
    adapted = [name for name, pair in keys.items() if shapes.keys() & pair]
    if len(adapted) == 1:
        raise AdapterFormatError(
            f"{' and '.join(keys)} are one matrix in this base model, but the file adapts {adapted[0]} alone; adapt "
            "both with the same values (PEFT: ensure_weight_tying) or neither",
            adapted[0],
        )


def _keys(name: str, info: BaseModelInfo) -> tuple[str, str]:
    return embedding_keys(name) if name == info.embedding else linear_keys(name)


def _in_our_order(name: str, info: BaseModelInfo) -> tuple[str, str]:
    first, second = _keys(name, info)
    return (second, first) if name == info.embedding else (first, second)


def _expected(name: str, rank: int, info: BaseModelInfo) -> dict[str, tuple[int, ...]]:
    first, second = _keys(name, info)
    if name == info.embedding:
        return {first: (rank, info.vocab_size), second: (info.hidden_size, rank)}
    if name == info.tied_head:
        return {first: (rank, info.hidden_size), second: (info.vocab_size, rank)}
    module = info.modules[name]
    return {first: (rank, module.in_features), second: (module.out_features, rank)}


def _check_names(
    shapes: Shapes, keys: Mapping[str, tuple[str, str]], targets: set[str], copies: Mapping[str, tuple[int, ...]]
) -> None:
    module_of = {key: name for name, pair in keys.items() for key in pair}
    _refuse_unknown(shapes, {**module_of, **copies})
    for key in sorted(shapes):
        if key not in copies and module_of[key] not in targets:
            raise AdapterFormatError(f"tensor {key} belongs to a module that target_modules does not name", key)
    for name in sorted(targets):
        for key, other in (keys[name], keys[name][::-1]):
            if key not in shapes:
                because = f"{other} needs it" if other in shapes else "target_modules names its module"
                raise AdapterFormatError(f"tensor {key} is missing: {because}", key)


def _refuse_unknown(shapes: Shapes, known: Mapping[str, object]) -> None:
    for key in sorted(shapes):
        if key not in known:
            raise AdapterFormatError(f"tensor {key} matches no module or tensor of the base model", key)


def _check_shapes(shapes: Shapes, expected: Shapes) -> None:
    for key, shape in expected.items():
        if key in shapes and tuple(shapes[key]) != shape:
            raise AdapterFormatError(f"tensor {key} has shape {tuple(shapes[key])}, expected {shape}", key)
