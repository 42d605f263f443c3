"""Proof that an adapter trains: every LoRA factor must receive a gradient of its own. Knows names and gradients only.

B starts at zero, so A's gradient is zero at the first applied step and must not be at the second; B's is due at once.
Text of two tokens is the one exception: attention over a single position weighs nothing, so queries and keys cannot
have a gradient there.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor

from workers.training.errors import TrainingError

DUE_AFTER_STEPS = 2


def still_without(names: Iterable[str], gradients: Mapping[str, Tensor]) -> list[str]:
    """Return those of `names` whose gradient is absent or zero everywhere."""
    return [name for name in names if name not in gradients or not bool(gradients[name].any())]


def require_gradients(without: Iterable[str], telling_steps: int) -> None:
    """Raise TrainingError naming the targets that should have had a gradient by now and had none.

    `without` names parameters, as `<module>.lora_A` or `<module>.lora_B`; `telling_steps` counts the applied steps
    whose data could give each of them a gradient.
    """
    if telling_steps == 0:
        return
    overdue = [n for n in without if telling_steps >= DUE_AFTER_STEPS or n.endswith(".lora_B")]
    if overdue:
        targets = sorted({name.split(".")[-2] for name in overdue})
        raise TrainingError(
            "zero_gradient",
            f"no gradient reached target {', '.join(targets)} ({len(overdue)} LoRA factors, first {overdue[0]}), "
            "so training would not change it: drop the target, or train on longer text",
        )
