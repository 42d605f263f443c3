"""Whose works go into the next pass: tenants share it by tokens, and a tenant's runs share what is the tenant's.

The tenant who has had the fewest tokens for its weight goes first, then its run that has had the fewest. Whoever comes
or comes back starts level with the one who had least, so that nobody is owed anything for time spent away. A work that
does not fit into what is left of a pass is passed over and is first in the next, whatever its size.

Deficit round-robin (Shreedhar and Varghese 1995) bounds the lag by the largest work in the same way, but hands out
rounds; counting what was had needs no rounds when works of several tenants go into one pass. Knows names and numbers.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Bid:
    """A run's work that waits: what it costs, in tokens, and whether it tolerates no other run's work beside it."""

    run: str
    tokens: int
    alone: bool = False


@dataclass
class _Account:
    weight: float
    runs: dict[str, float] = field(default_factory=dict)
    had: float = 0.0


class Turns:
    """Accounts of the runs that are here."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Account] = {}
        self._tenant_of: dict[str, str] = {}
        self._in_line: set[str] = set()

    def join(self, run: str, tenant: str, weight: float = 1.0) -> None:
        """Let a run take part; `weight` is the tenant's share relative to others."""
        account = self._tenants.get(tenant)
        if account is None:
            level = min((other.had for other in self._tenants.values()), default=0.0)
            account = self._tenants[tenant] = _Account(weight, had=level)
        account.weight = weight
        account.runs[run] = min(account.runs.values(), default=0.0)
        self._tenant_of[run] = tenant

    def leave(self, run: str) -> None:
        """Forget a run, and its tenant with the last one."""
        tenant = self._tenant_of.pop(run)
        del self._tenants[tenant].runs[run]
        if not self._tenants[tenant].runs:
            del self._tenants[tenant]

    def choose(self, bids: Collection[Bid], limit: int) -> list[Bid]:
        """Return the bids of one pass of about `limit` tokens, each charged: the first in turn, and whatever fits."""
        self._level({self._tenant_of[bid.run] for bid in bids})
        waiting, room = list(bids), limit
        chosen: list[Bid] = []
        while (bid := self._next(waiting)) is not None:
            waiting.remove(bid)
            if chosen and (bid.tokens > room or bid.alone):
                continue
            chosen.append(bid)
            room -= bid.tokens
            self._charge(bid)
            if bid.alone:
                break
        return chosen

    def first(self, bids: Collection[Bid]) -> str:
        """Return the run whose turn it is."""
        bid = self._next(bids)
        assert bid is not None, "somebody bids"
        return bid.run

    def _level(self, tenants: set[str]) -> None:
        """Let tenants that were not in line last time start level with the least of those that were."""
        stayed = [self._tenants[tenant].had for tenant in tenants & self._in_line]
        for tenant in tenants - self._in_line:
            account = self._tenants[tenant]
            account.had = max(account.had, min(stayed, default=account.had))
        self._in_line = tenants

    def _next(self, bids: Iterable[Bid]) -> Bid | None:
        def had(bid: Bid) -> tuple[float, float]:
            account = self._tenants[self._tenant_of[bid.run]]
            return account.had, account.runs[bid.run]

        return min(bids, key=had, default=None)

    def _charge(self, bid: Bid) -> None:
        account = self._tenants[self._tenant_of[bid.run]]
        account.had += bid.tokens / account.weight
        account.runs[bid.run] += bid.tokens
