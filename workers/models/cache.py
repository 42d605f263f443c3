"""What a model remembers of one sequence between forwards: a state for each layer that has one. Knows tensors only."""

from typing import Protocol


class LayerState(Protocol):
    """Keys and values, convolution taps, a recurrent state: each mixer knows its own, and updates it in place."""

    def clone(self) -> "LayerState":
        """Return an independent copy."""
        ...


class SequenceCache:
    """The states after `length` tokens of a sequence of up to `capacity`; one entry a mixer, None where it has none."""

    def __init__(self, states: list[LayerState | None], capacity: int, length: int = 0) -> None:
        self.states = states
        self.capacity = capacity
        self.length = length

    def clone(self) -> "SequenceCache":
        """Return an independent copy with the same capacity."""
        return SequenceCache([s and s.clone() for s in self.states], self.capacity, self.length)
