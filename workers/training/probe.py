"""Proof that an adapter is heard: noise on any one target must change the logits, as serving computes them.

A gradient alone does not say so: a path that only the forward of training takes may lead to the target. Whether a
target is heard depends on the base alone, so that each kind of parameter is probed once in a worker. Knows a model and
one slot; leaves the slot as it was. Probed with fixed, distinct tokens: a prefill and one decoded row.
"""

from collections.abc import Generator, Mapping

import torch
from torch import Tensor

from workers.models.batch import pack
from workers.models.language_model import LanguageModel
from workers.training.errors import TrainingError
from workers.training.gradient_check import target_of

PROBE_TOKENS = 6
NOISE = 0.5
"""Of the noise on a delta; large enough to be seen through bfloat16."""


def is_fresh(parameters: Mapping[str, Tensor]) -> bool:
    """Return whether nothing has been trained yet: the adapter changes nothing, so every target can be probed."""
    return all(not bool(p.any()) for name, p in parameters.items() if not name.endswith(".lora_A"))


def require_effect(
    model: LanguageModel, slot: int, parameters: Mapping[str, Tensor], heard: set[str]
) -> Generator[None, None, None]:
    """Raise TrainingError naming the targets that change no logits; yields after each.

    Kinds of parameters in `heard` are passed by; those found to change the logits are added to it.
    """
    by_kind: dict[str, list[str]] = {}
    for name in parameters:
        kind = f"{target_of(name)}.{name.rpartition('.')[2]}"
        if not name.endswith(".lora_A") and kind not in heard:
            by_kind.setdefault(kind, []).append(name)
    if not by_kind:
        return
    before = _logits(model, slot)
    silent = []
    for kind, names in by_kind.items():
        after = _with_noise(model, slot, {name: parameters[name] for name in names})
        if any(torch.equal(a, b) for a, b in zip(after, before, strict=True)):
            silent.append(target_of(names[0]))
        else:
            heard.add(kind)
        yield
    if silent:
        raise TrainingError(
            "no_effect", f"target {', '.join(silent)} does not change the model's logits, so training it has no effect"
        )


@torch.no_grad()
def _with_noise(model: LanguageModel, slot: int, parameters: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the logits with noise in these parameters, which are all zero, and put the zeros back."""
    generator = torch.Generator().manual_seed(0)
    try:
        for parameter in parameters.values():
            noise = torch.randn(parameter.shape, generator=generator) * NOISE
            parameter.copy_(noise.to(parameter.dtype))
        return _logits(model, slot)
    finally:
        for parameter in parameters.values():
            parameter.zero_()


@torch.no_grad()
def _logits(model: LanguageModel, slot: int) -> list[Tensor]:
    """Return the logits after a prefill, and those of the next token decoded from the state."""
    ids = torch.linspace(0, model.config.vocab_size - 1, PROBE_TOKENS).long().tolist()
    caches = [model.new_cache(PROBE_TOKENS)]
    first_TD = model.hidden(pack([ids[:-1]], [slot], model.device), caches)
    next_TD = model.hidden(pack([ids[-1:]], [slot], model.device, starts=[PROBE_TOKENS - 1]), caches)
    return [model.logits(hidden_TD[-1:], [slot]) for hidden_TD in (first_TD, next_TD)]
