"""Keys and values of one sequence, in buffers that grow by blocks and that sequences with a common beginning share.

A buffer is one piece of memory, not a table of blocks: gathering blocks from a pool before each attention was measured
to cost SmolLM2-135M on a CPU 1 to 4 % of a decode step at 128 tokens, 3 to 9 % at 1000 and 14 % at 4000. So a full
buffer is replaced by one of about twice its blocks, and a token is copied once more at most, on average. The price is
that a beginning is shared without a copy by all who only keep it, but by one sequence only of those that go on.

Legend: C rows of a buffer, L new tokens, M keys seen, G key/value heads, E head width.
"""

from collections.abc import Iterator

from torch import Tensor

BLOCK_TOKENS = 64


def rounded_up(tokens: int) -> int:
    """Return the tokens of as many whole blocks as `tokens` need."""
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS


class _Buffer:
    """Rows of keys, then values. The first `written` are final; only a state that ends there may write the next."""

    __slots__ = ("kv_C2GE", "rows", "written")

    def __init__(self, kv_C2GE: Tensor, written: int) -> None:
        self.kv_C2GE, self.rows, self.written = kv_C2GE, kv_C2GE.shape[0], written


class KeyValueState:
    """The first `length` rows of a buffer [C, 2G, E], which other states may share; it grows to `capacity` tokens."""

    cuttable = True

    def __init__(self, nothing_02GE: Tensor, capacity: int) -> None:
        """Start before the first token; `nothing_02GE` has no rows, but the shape and place of those to come."""
        self._buffer = _Buffer(nothing_02GE, 0)
        self.length, self._capacity = 0, capacity

    def at(self, length: int, capacity: int) -> "KeyValueState":
        """Return an independent state of the first `length` tokens, with room for `capacity`. Nothing is copied yet."""
        state = KeyValueState(self._buffer.kv_C2GE[:0], capacity)
        state._buffer, state.length = self._buffer, length
        return state

    def compact(self) -> "KeyValueState":
        """Return an independent state of the same tokens."""
        return self.at(self.length, self._capacity)

    def tensors(self) -> Iterator[Tensor]:
        """Yield the buffer, which other states may yield too."""
        yield self._buffer.kv_C2GE

    def append(self, kv_L2GE: Tensor) -> Tensor:
        """Write the next tokens' keys and values; return those of all tokens so far [M, 2G, E]."""
        past = self.length
        self.length = length = past + kv_L2GE.shape[0]
        buffer = self._buffer
        if buffer.written != past or buffer.rows < length:
            buffer = self._buffer = self._own(past, length)
        buffer.written = length
        kv_M2GE = buffer.kv_C2GE.narrow(0, 0, length)
        kv_M2GE.narrow(0, past, length - past).copy_(kv_L2GE)
        return kv_M2GE

    def _own(self, past: int, length: int) -> _Buffer:
        """Return a buffer with a copy of the past and room to go on."""
        rows = rounded_up(max(length, min(2 * length, self._capacity)))
        before_C2GE = self._buffer.kv_C2GE
        kv_C2GE = before_C2GE.new_empty((rows, *before_C2GE.shape[1:]))
        kv_C2GE[:past] = before_C2GE[:past]
        return _Buffer(kv_C2GE, past)
