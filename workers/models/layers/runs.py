"""Cuts packed rows into runs of neighbouring sequences of equal length, which layers compute as one block."""

from collections.abc import Sequence
from itertools import groupby


def equal_runs(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return (count, length) of each run; together they cover all rows in order."""
    return [(sum(1 for _ in same), length) for length, same in groupby(lengths)]
