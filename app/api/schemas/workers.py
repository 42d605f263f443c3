"""Wire form of workers, for the operator."""

from typing import Literal

from pydantic import BaseModel

from app.contracts.workers import ServingCounts
from app.services.workers import SeenWorker


class Places(BaseModel):
    """How many there are, and how many of them are free."""

    total: int
    free: int


class LoadedVersion(BaseModel):
    """An adapter version in one of the worker's slots."""

    tenant_id: str
    adapter_id: str
    version_id: str


class WorkerObject(BaseModel):
    """A worker as it told with its last heartbeat."""

    id: str
    object: Literal["worker"] = "worker"
    status: Literal["alive", "gone"]
    base_model: str
    device: str
    role: str
    training_slots: Places
    serving_places: Places
    open_requests: int
    load: float
    """Open requests by serving places: above 1 some wait."""
    adapters: list[LoadedVersion]
    counts: ServingCounts
    started_at: float
    heartbeat_at: float
    """By the database's clock, as `silent_seconds`."""
    silent_seconds: float

    @classmethod
    def of(cls, seen: SeenWorker) -> "WorkerObject":
        """Return the wire form."""
        row = seen.row
        versions = [LoadedVersion(tenant_id=t, adapter_id=a, version_id=v) for t, a, v in row.adapters]
        return cls(
            id=row.id,
            status="gone" if seen.gone else "alive",
            base_model=row.base_model,
            device=row.device,
            role=row.role,
            training_slots=Places(total=row.training_slots, free=row.training_slots_free),
            serving_places=Places(total=row.serving_places, free=row.serving_places_free),
            open_requests=row.open_requests,
            load=row.open_requests / max(1, row.serving_places),
            adapters=versions,
            counts=ServingCounts.model_validate(row.counts),
            started_at=row.started_at,
            heartbeat_at=row.heartbeat_at,
            silent_seconds=seen.silent_seconds,
        )
