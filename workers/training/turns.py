"""Whose works go into the next pass: tenants share it by tokens, and a tenant's runs share what is the tenant's.

Start-time fair queueing (Goyal, Vin and Chen 1996) on two levels: the tenant who has had the fewest tokens for its
weight comes first, and of its runs the one that has had the fewest. Whoever comes, or comes back, starts level with who
was served last, so that nobody is owed anything for time spent away, and nobody gets rid of a debt by leaving. The
first work goes whatever its size; the first after it that does not fit ends the pass, and so loses its place to nobody.
Works of another kind are passed over, which costs them a pass at the most. Knows names and numbers.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Bid:
    """A run's work that waits, and what it costs in tokens. Works of one `kind` can share a pass."""

    run: str
    tokens: int
    kind: str = ""


@dataclass
class _Line:
    """What each member has had, and where a newcomer starts."""

    had: dict[str, float] = field(default_factory=dict)
    level: float = 0.0
    passed_over: set[str] = field(default_factory=set)
    """Who waits since before the last pass, and keeps what it is owed."""

    def join(self, member: str) -> None:
        self.had[member] = max(self.had.get(member, 0.0), self.level)

    def arrive(self, members: Iterable[str]) -> None:
        for member in members:
            if member not in self.passed_over:
                self.join(member)

    def serve(self, member: str, cost: float) -> None:
        self.level = max(self.level, self.had[member])
        self.had[member] += cost

    def forget(self, member: str) -> None:
        """Let go of a member that is away, once the others have had as much."""
        if self.had[member] <= self.level:
            del self.had[member]


@dataclass
class _Tenant:
    weight: float
    runs: _Line = field(default_factory=_Line)


class Turns:
    """Accounts of the runs that are here."""

    def __init__(self) -> None:
        self._line = _Line()
        self._tenants: dict[str, _Tenant] = {}
        self._tenant_of: dict[str, str] = {}

    def join(self, run: str, tenant: str, weight: float = 1.0) -> None:
        """Let a run take part; `weight` is the tenant's share relative to others, as known now."""
        if tenant not in self._tenants:
            self._tenants[tenant] = _Tenant(weight)
            self._line.join(tenant)
        self._tenants[tenant].weight = weight
        self._tenants[tenant].runs.join(run)
        self._tenant_of[run] = tenant

    def leave(self, run: str) -> None:
        """Forget a run, and its tenant with the last one."""
        tenant = self._tenant_of.pop(run)
        runs = self._tenants[tenant].runs
        del runs.had[run]
        if not runs.had:
            del self._tenants[tenant]

    def choose(self, bids: Collection[Bid], limit: int) -> list[Bid]:
        """Return the bids of one pass of about `limit` tokens, each charged: the first in turn, and whoever fits."""
        self._arrive(bids)
        chosen: list[Bid] = []
        others: list[Bid] = []
        waiting, room = list(bids), limit
        while waiting:
            bid = min(waiting, key=self._place)
            if chosen and bid.kind == chosen[0].kind and bid.tokens > room:
                break
            waiting.remove(bid)
            if chosen and bid.kind != chosen[0].kind:
                others.append(bid)
                continue
            chosen.append(bid)
            room -= bid.tokens
            self._charge(bid)
        self._pass_over([*others, *waiting])
        return chosen

    def _arrive(self, bids: Iterable[Bid]) -> None:
        for away in self._line.had.keys() - self._tenants.keys():
            self._line.forget(away)
        self._line.arrive({self._tenant_of[bid.run] for bid in bids})
        for bid in bids:
            self._tenants[self._tenant_of[bid.run]].runs.arrive([bid.run])

    def _pass_over(self, bids: Iterable[Bid]) -> None:
        left = {bid.run for bid in bids}
        self._line.passed_over = {self._tenant_of[run] for run in left}
        for tenant in self._tenants.values():
            tenant.runs.passed_over = left

    def _place(self, bid: Bid) -> tuple[float, float]:
        tenant = self._tenant_of[bid.run]
        return self._line.had[tenant], self._tenants[tenant].runs.had[bid.run]

    def _charge(self, bid: Bid) -> None:
        name = self._tenant_of[bid.run]
        tenant = self._tenants[name]
        self._line.serve(name, bid.tokens / tenant.weight)
        tenant.runs.serve(bid.run, bid.tokens)
