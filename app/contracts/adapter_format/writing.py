"""Writes `adapter_config.json`: PEFT's as far as there is something for PEFT, our key beside it where there is more."""

import re
from collections.abc import Mapping, Sequence

from app.contracts.base_models import BaseModelInfo
from app.contracts.training import Mode


def peft_config(
    info: BaseModelInfo,
    *,
    rank: int,
    alpha: float,
    targets: Sequence[str],
    ranks: Mapping[str, int],
    scales: Mapping[str, float],
) -> dict[str, object]:
    """Return PEFT's configuration of an adapter with these ranks and scales by module name.

    `targets` are last name parts, or full names. An adapted embedding takes a tied head along.
    """
    names = dict(zip(ranks, ranks, strict=True))
    tied = info.tied_head if info.embedding in ranks else ""
    if tied:
        names[tied] = info.embedding
    alphas = {name: scales[source] * ranks[source] for name, source in names.items()}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": info.id,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted({*_target_modules(targets, ranks), *([tied] if tied else [])}),
        "rank_pattern": {re.escape(n): ranks[s] for n, s in sorted(names.items()) if ranks[s] != rank},
        "alpha_pattern": {re.escape(n): a for n, a in sorted(alphas.items()) if abs(a - alpha) > 1e-9 * alpha},
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "ensure_weight_tying": bool(tied),
    }


def own_config(info: BaseModelInfo, *, rank: int, alpha: float) -> dict[str, object]:
    """Return the configuration of a file in which there is nothing for PEFT; `graft_part` belongs to it."""
    return {"base_model_name_or_path": info.id, "r": rank, "lora_alpha": alpha}


def graft_part(mode: Mode) -> dict[str, object]:
    """Return our key of a configuration."""
    return {"graft": {"mode": mode}}


def _target_modules(targets: Sequence[str], ranks: Mapping[str, int]) -> set[str]:
    """Return the modules by last name part, as training names them, or in full where `targets` names them so."""
    if any(name in ranks and "." in name for name in targets):
        return set(ranks)
    return {name.rpartition(".")[2] for name in ranks}
