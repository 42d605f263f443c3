"""The store of kept beginnings against the plainest search, and its bytes."""

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.inference.prefixes import SHORTEST, PrefixStore
from workers.models.cache import LayerState, SequenceCache
from workers.models.layers.key_value_state import BLOCK_TOKENS, KeyValueState
from workers.models.layers.recurrence import RecurrentState, Row

KEY = ("tnt-a", "tiny")
COMMON = [3] * (SHORTEST - 1)
TOKENS = st.lists(st.integers(0, 2), min_size=0, max_size=6)
BLOCK_BYTES = BLOCK_TOKENS * 2 * 4


def attention(length: int) -> SequenceCache:
    """Keys and values of two floats a token."""
    state = KeyValueState(torch.empty(0, 2, 1), length)
    state.append(torch.zeros(length, 2, 1))
    return SequenceCache([None, state], length, length)


def recurrent(length: int) -> SequenceCache:
    """A state of four floats, one row of a batch of three."""
    states: list[LayerState | None] = [RecurrentState(None, Row(torch.full((3, 4), float(length)), 1))]
    return SequenceCache(states, length, length)


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


@given(kept=st.lists(TOKENS, max_size=8), wanted=TOKENS)
def test_any_shared_beginning_of_keys_and_values_is_found(kept: list[list[int]], wanted: list[int]) -> None:
    store = PrefixStore(10**6)
    for ids in kept:
        store.keep(KEY, COMMON + ids, attention(len(COMMON + ids)), None)
    most = max((min(shared(ids, wanted), len(wanted) - 1) for ids in kept if ids), default=0)
    found = store.find(KEY, COMMON + wanted)
    assert (found.length if found else 0) == (len(COMMON) + most if most > 0 else 0)
    distinct = {tuple(ids) for ids in kept if ids}
    assert store.stats().kept == sum(
        not any(other != ids and other[: len(ids)] == ids for other in distinct) for ids in distinct
    )


@given(kept=st.lists(st.tuples(TOKENS, st.booleans()), max_size=8), wanted=TOKENS)
def test_only_whole_recurrent_beginnings_are_found(kept: list[tuple[list[int], bool]], wanted: list[int]) -> None:
    store = PrefixStore(10**6)
    with_hidden: dict[tuple[int, ...], bool] = {}
    for ids, hidden in kept:
        store.keep(KEY, COMMON + ids, recurrent(len(ids)), torch.ones(2) if hidden else None)
        with_hidden.setdefault(tuple(ids), hidden)
    usable = [
        len(ids)
        for ids, hidden in with_hidden.items()
        if ids and wanted[: len(ids)] == list(ids) and (len(ids) < len(wanted) or hidden)
    ]
    found = store.find(KEY, COMMON + wanted)
    assert (found.length if found else 0) == (len(COMMON) + max(usable) if usable else 0)
    if found is not None:
        state = found.cache.states[0]
        assert isinstance(state, RecurrentState)
        assert state.scan is not None
        assert state.scan.of_S.tolist() == [[float(found.length - len(COMMON))] * 4]
        assert found.hidden_D is not None or found.length < len(COMMON + wanted)


def test_memory_that_several_hold_counts_once_and_goes_with_the_last() -> None:
    store = PrefixStore(10 * BLOCK_BYTES)
    cache = attention(40)
    store.keep(KEY, [1] * 40, cache, None)
    store.keep(("tnt-b", "tiny"), [1] * 20, cache.at(20, 40), None)
    assert (store.stats().kept, store.stats().bytes) == (2, BLOCK_BYTES)
    for i in range(9):
        store.keep(KEY, [2 + i] * 20, attention(20), None)
    assert (store.stats().kept, store.stats().bytes, store.stats().evictions) == (11, 10 * BLOCK_BYTES, 0)
    store.keep(KEY, [20] * 20, attention(20), None)
    assert (store.stats().kept, store.stats().bytes, store.stats().evictions) == (10, 10 * BLOCK_BYTES, 2)
    assert store.find(KEY, [1] * 41) is None
    assert store.find(("tnt-b", "tiny"), [1] * 41) is None


def test_use_protects_from_eviction() -> None:
    store = PrefixStore(2 * BLOCK_BYTES)
    store.keep(KEY, [1] * 20, attention(20), None)
    store.keep(KEY, [2] * 20, attention(20), None)
    assert store.find(KEY, [1] * 30) is not None
    store.keep(KEY, [3] * 20, attention(20), None)
    assert store.find(KEY, [2] * 30) is None
    assert store.find(KEY, [1] * 30) is not None


def test_what_is_larger_than_the_budget_pushes_nothing_out() -> None:
    store = PrefixStore(BLOCK_BYTES)
    store.keep(KEY, [1] * 20, attention(20), None)
    store.keep(KEY, [1] * (BLOCK_TOKENS + 1), attention(BLOCK_TOKENS + 1), None)
    found = store.find(KEY, [1] * 30)
    assert found is not None
    assert found.length == 20
    assert store.stats().evictions == 0


def test_nothing_is_kept_without_a_budget_nor_of_a_few_tokens() -> None:
    for store, length in ((PrefixStore(0), 40), (PrefixStore(10**6), SHORTEST - 1)):
        store.keep(KEY, [1] * length, attention(length), None)
        assert store.stats().kept == 0
        assert store.find(KEY, [1] * 50) is None
