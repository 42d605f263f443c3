"""Adapter weights kept in the host's memory; the least recently used go first. Knows bytes and recency only."""

from collections import OrderedDict

from app.contracts.adapters import VersionKey
from workers.lora.adapter import AdapterWeights


class WeightsLRU:
    """Holds at most `max_bytes`, or the newest alone where that is larger."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: OrderedDict[VersionKey, tuple[AdapterWeights, int]] = OrderedDict()
        self.bytes = 0

    def __contains__(self, key: VersionKey) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: VersionKey) -> AdapterWeights | None:
        """Return what is held under a key and note its use, or None."""
        if key not in self._held:
            return None
        self._held.move_to_end(key)
        return self._held[key][0]

    def put(self, key: VersionKey, weights: AdapterWeights) -> None:
        """Hold weights under a key that holds none yet."""
        size = bytes_of(weights)
        self._held[key] = weights, size
        self.bytes += size
        while self.bytes > self._max_bytes and len(self._held) > 1:
            _, (_, gone) = self._held.popitem(last=False)
            self.bytes -= gone


def bytes_of(weights: AdapterWeights) -> int:
    """Return the bytes of all tensors."""
    factors = [tensor for pair in weights.tensors.values() for tensor in pair]
    return sum(tensor.nbytes for tensor in (*factors, *weights.dense.values(), *weights.own.values()))
