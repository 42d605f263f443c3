"""Decides which waiting request runs next.

Knows places (sequences that may run at once) and tenants; knows nothing of tensors, adapters' weights or text.
"""

from collections import Counter
from collections.abc import Collection

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


class Scheduler:
    """Requests wait here; the tenant with the fewest places in use goes first, then the one who came first."""

    def __init__(self, places: int) -> None:
        self.places = places
        self._waiting: dict[str, InferenceRequest] = {}
        self._used: dict[str, tuple[str, int]] = {}

    def add(self, request: InferenceRequest) -> None:
        """Let a request wait."""
        self._waiting[request.id] = request

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
        for tenant, places in self._used.values():
            busy[tenant] += places
        turn = [request for request in self._waiting.values() if request.id not in passed_over]
        first = min(turn, key=lambda request: busy[tenant_of(request)], default=None)
        if first is None or busy.total() + places_of(first) > self.places:
            return None
        return first

    def start(self, request: InferenceRequest) -> None:
        """Move a request from waiting to running."""
        del self._waiting[request.id]
        self._used[request.id] = (tenant_of(request), places_of(request))

    def shrink(self, request_id: str, places: int) -> None:
        """Tell how many places a running request still needs."""
        self._used[request_id] = (self._used[request_id][0], places)

    def remove(self, request_id: str) -> None:
        """Forget a request, waiting or running; unknown ids are ignored."""
        self._waiting.pop(request_id, None)
        self._used.pop(request_id, None)
