"""Decides which waiting request runs next.

Knows places (sequences that may run at once), bytes of state and tenants; knows nothing of tensors, adapters' weights
or text. What a request may come to need is set aside when it starts, so no running one is ever put off for another.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from app.contracts.adapters import VersionKey
from app.contracts.inference import GenerateRequest, InferenceRequest


def tenant_of(request: InferenceRequest) -> str:
    """Return whose share a request counts against; what only reads on the bare base model shares one."""
    if isinstance(request, GenerateRequest):
        return request.tenant_id
    return "" if request.adapter is None else request.adapter.tenant_id


def places_of(request: InferenceRequest) -> int:
    """Return how many places a request takes when it starts."""
    return request.sampling.n if isinstance(request, GenerateRequest) else 1


def _version_of(request: InferenceRequest) -> VersionKey | None:
    return None if request.adapter is None else request.adapter.key


@dataclass(frozen=True)
class Limits:
    """What all running requests share: places, and bytes of state (None: as many as they want)."""

    places: int
    state_bytes: int | None = None


@dataclass
class _Share:
    tenant: str
    places: int
    bytes_each: int


class Scheduler:
    """Requests wait here; the tenant with the fewest places in use goes first, then the one who came first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._waiting: dict[str, InferenceRequest] = {}
        self._bytes_each: dict[str, int] = {}
        self._used: dict[str, _Share] = {}

    @property
    def used_places(self) -> int:
        """The places that running requests take; any thread may ask."""
        return sum(share.places for share in list(self._used.values()))

    @property
    def state_bytes(self) -> int:
        """The bytes set aside for what runs."""
        return sum(share.places * share.bytes_each for share in self._used.values())

    def add(self, request: InferenceRequest, bytes_each: int = 0) -> None:
        """Let a request wait; each of its places will take up to so many bytes of state."""
        self._waiting[request.id] = request
        self._bytes_each[request.id] = bytes_each

    def waiting_ids(self) -> list[str]:
        """Return the ids of the requests that wait."""
        return list(self._waiting)

    def waiting_with(self, request: InferenceRequest) -> list[str]:
        """Return the ids of the requests that wait for the same version as this one, its own among them."""
        key = _version_of(request)
        return [other.id for other in self._waiting.values() if _version_of(other) == key]

    def pick(self, passed_over: Collection[str] = ()) -> InferenceRequest | None:
        """Return the request whose turn it is, or None when none waits or the one in turn does not fit yet.

        A request that does not fit holds back the ones behind it, so that many small ones cannot starve it.
        """
        busy: Counter[str] = Counter()
        for share in self._used.values():
            busy[share.tenant] += share.places
        turn = [request for request in self._waiting.values() if request.id not in passed_over]
        first = min(turn, key=lambda request: busy[tenant_of(request)], default=None)
        if first is None or busy.total() + places_of(first) > self.limits.places:
            return None
        needed = self.state_bytes + places_of(first) * self._bytes_each[first.id]
        return None if self.limits.state_bytes is not None and needed > self.limits.state_bytes else first

    def start(self, request: InferenceRequest) -> None:
        """Move a request from waiting to running."""
        del self._waiting[request.id]
        self._used[request.id] = _Share(tenant_of(request), places_of(request), self._bytes_each.pop(request.id))

    def shrink(self, request_id: str, places: int) -> None:
        """Tell how many places a running request still needs."""
        self._used[request_id].places = places

    def remove(self, request_id: str) -> None:
        """Forget a request, waiting or running; unknown ids are ignored."""
        self._waiting.pop(request_id, None)
        self._bytes_each.pop(request_id, None)
        self._used.pop(request_id, None)
