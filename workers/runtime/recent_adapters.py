"""Which adapter versions a worker used last: as many as it keeps, in the order in which it drops them.

It mirrors the cache by its one rule, least recently used first, and so needs to ask nobody. A wrong guess costs a load.
"""

from collections import OrderedDict
from collections.abc import Iterable


class RecentAdapters:
    """Names of at most `most` versions."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def use(self, names: Iterable[str]) -> list[str]:
        """Note that versions are used now; return those that made room for them."""
        for name in names:
            self._names[name] = None
            self._names.move_to_end(name)
        return [self._names.popitem(last=False)[0] for _ in range(len(self._names) - self._most)]
