"""What a worker tells about itself with every heartbeat."""

from pydantic import Field

from app.contracts.adapters import VersionKey
from app.contracts.base import Contract


class ServingCounts(Contract):
    """What a worker's caches have done since it started."""

    adapter_hits: int = 0
    """Requests whose version was in a slot already."""
    adapter_host_hits: int = 0
    """Versions that came into a slot from the host's memory."""
    adapter_loads: int = 0
    """Versions that were read from the database."""
    adapter_failed_loads: int = 0
    adapter_evictions: int = 0
    prefix_hits: int = 0
    """Requests that began with kept tokens."""
    prefix_saved_tokens: int = 0
    """Prompt tokens that need not be computed again."""
    prefix_evictions: int = 0


class WorkerState(Contract):
    """How full a worker is, and what it holds."""

    training_slots: int = Field(ge=0)
    """Jobs that it trains at once."""
    training_slots_free: int = Field(ge=0)
    serving_places: int = Field(ge=0)
    """Sequences that it decodes at once."""
    serving_places_free: int = Field(ge=0)
    open_requests: int = Field(ge=0)
    """Requests that it has taken and not ended, running or waiting for a place."""
    adapters: list[VersionKey]
    """Versions in its slots, least recently used first."""
    counts: ServingCounts = ServingCounts()
