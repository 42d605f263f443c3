"""What a worker tells about itself with every heartbeat."""

from pydantic import Field

from app.contracts.adapters import VersionKey
from app.contracts.base import Contract


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
