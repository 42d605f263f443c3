"""What a worker tells of itself. Read by the heartbeat's thread while the main one works: lengths and copies only."""

from app.contracts.workers import WorkerState
from workers.inference.adapter_cache import AdapterCache
from workers.inference.engine import Engine
from workers.runtime.job_desk import JobDesk


def state_of(engine: Engine, adapters: AdapterCache, jobs: JobDesk) -> WorkerState:
    """Return how full the worker is now, and the versions in its slots."""
    running, free = jobs.running, jobs.free_slots
    return WorkerState(
        training_slots=running + free,
        training_slots_free=free,
        serving_places=engine.places,
        serving_places_free=max(0, engine.free_places),
        open_requests=len(engine.request_ids),
        adapters=adapters.versions(),
    )
