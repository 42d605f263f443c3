"""Proof that an adapter trains: every trained parameter must receive a gradient of its own. Knows names and gradients.

B starts at zero, so A's gradient is zero at the first applied step and must not be at the second; that of B and of
dense deltas is due at once. Text of two tokens is the one exception: a single position has neither anything to attend
to nor a state before it, so queries, keys and decays cannot have a gradient there. Whole weights (`.own`) are not
checked: some have a zero gradient by right, as a bias that every key shares.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor

from app.contracts.targets import tensor_target
from workers.training.errors import TrainingError

DUE_AFTER_STEPS = 2


def must_have_gradients(names: Iterable[str]) -> list[str]:
    """Return the parameters among `names` that are checked."""
    return [name for name in names if not name.endswith(".own")]


def target_of(parameter: str) -> str:
    """Return the target that a parameter `<module>.lora_A`, `<module>.lora_B` or `<tensor>.delta` belongs to."""
    owner, _, kind = parameter.rpartition(".")
    return tensor_target(owner) if kind == "delta" else owner.rpartition(".")[2]


def still_without(names: Iterable[str], gradients: Mapping[str, Tensor]) -> list[str]:
    """Return those of `names` whose gradient is absent or zero everywhere."""
    return [name for name in names if name not in gradients or not bool(gradients[name].any())]


def require_gradients(without: Iterable[str], telling_steps: int) -> None:
    """Raise TrainingError naming the targets that should have had a gradient by now and had none.

    `without` names parameters; `telling_steps` counts the applied steps whose data could give each of them a gradient.
    """
    if telling_steps == 0:
        return
    overdue = [n for n in without if telling_steps >= DUE_AFTER_STEPS or not n.endswith(".lora_A")]
    if overdue:
        targets = sorted({target_of(name) for name in overdue})
        raise TrainingError(
            "zero_gradient",
            f"no gradient reached target {', '.join(targets)} ({len(overdue)} parameters, first {overdue[0]}), "
            "so training would not change it: drop the target, or train on longer text",
        )
