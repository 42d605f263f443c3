"""How many tokens the engine runs in one step. Knows numbers and kinds of devices only."""

from typing import NamedTuple


class StepTokens(NamedTuple):
    """At most so many, beside one token of each sequence that decodes."""

    prompts: int
    """Of all prompts together, while nothing decodes."""
    beside: int
    """Of all prompts together, while something does: each of its tokens waits for them."""
    read: int
    """Of one request that scores or embeds."""


ACCELERATOR = StepTokens(256, 256, 512)
BY_DEVICE = {"cpu": StepTokens(256, 64, 128)}
"""On two cores 64 tokens of a prompt take two or three times as long as a step that only decodes."""


def step_tokens(device: str) -> StepTokens:
    """Return what suits a kind of device."""
    return BY_DEVICE.get(device, ACCELERATOR)
