"""What runs ask of the model, as data: windows to learn from or to be scored on, in the run's own slot.

A run yields a Work and is sent its summed negative log-likelihood; who computes it, and together with whose, is not
known here. So the same run trains alone or in a pass that it shares with others.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from workers.training.dataset import Window, count_tokens


@dataclass(frozen=True)
class Work:
    """Windows of one run for one pass. The answer is their summed negative log-likelihood in nats.

    `share` is what the loss is multiplied with before gradients of it are added to the slot's parameters; None asks for
    no gradients. `recompute` trades time for memory.
    """

    slot: int
    windows: tuple[Window, ...]
    share: float | None = None
    recompute: bool = False

    @property
    def tokens(self) -> int:
        """Tokens the model sees."""
        return count_tokens(self.windows)


T = TypeVar("T")
R = TypeVar("R")
Working = Generator[T | Work, Any, R]
"""Yields items of its own, and works whose answers it must be sent."""
