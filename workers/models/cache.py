"""What a model remembers of one sequence between forwards: a state for each layer that has one. Knows tensors only."""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor


class LayerState(Protocol):
    """Keys and values, convolution taps, a recurrent state: each mixer knows its own, and updates it in place."""

    @property
    def cuttable(self) -> bool:
        """Whether the state after fewer tokens can be had from it."""
        ...

    def at(self, length: int, capacity: int) -> "LayerState":
        """Return an independent state after `length` tokens, its own length unless it is cuttable."""
        ...

    def compact(self) -> "LayerState":
        """Return an independent state that keeps no memory alive which only others need."""
        ...

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors it keeps alive; states that share one yield the same."""
        ...


class SequenceCache:
    """The states after `length` tokens of a sequence of up to `capacity`; one entry a mixer, None where it has none."""

    def __init__(self, states: list[LayerState | None], capacity: int, length: int = 0) -> None:
        self.states = states
        self.capacity = capacity
        self.length = length

    @property
    def cuttable(self) -> bool:
        """Whether the cache of a shorter beginning of the sequence can be had from it."""
        return all(state.cuttable for state in self.states if state is not None)

    def at(self, length: int, capacity: int) -> "SequenceCache":
        """Return an independent cache of the first `length` tokens with another capacity.

        Raises ValueError for another length than its own unless it is cuttable.
        """
        if length != self.length and not (self.cuttable and length < self.length):
            raise ValueError(f"a cache of {self.length} tokens cannot become one of {length}")
        return SequenceCache([s and s.at(length, capacity) for s in self.states], capacity, length)

    def clone(self) -> "SequenceCache":
        """Return an independent copy with the same capacity."""
        return self.at(self.length, self.capacity)

    def compact(self) -> "SequenceCache":
        """Return an independent copy that keeps no memory alive which only other sequences need."""
        return SequenceCache([s and s.compact() for s in self.states], self.capacity, self.length)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors it keeps alive; caches that share one yield the same."""
        for state in self.states:
            if state is not None:
                yield from state.tensors()
