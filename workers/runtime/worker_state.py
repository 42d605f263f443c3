"""What a worker tells of itself. Read by the heartbeat's thread while the main one works: lengths and copies only."""

from app.contracts.workers import ServingCounts, WorkerState
from workers.inference.adapter_cache import AdapterCache, AdapterCacheStats
from workers.inference.engine import Engine
from workers.inference.prefixes import PrefixStats, PrefixStore
from workers.runtime.job_desk import JobDesk


def state_of(engine: Engine, adapters: AdapterCache, prefixes: PrefixStore, jobs: JobDesk) -> WorkerState:
    """Return how full the worker is now, the versions in its slots, and what its caches have done."""
    running, free = jobs.running, jobs.free_slots
    return WorkerState(
        training_slots=running + free,
        training_slots_free=free,
        serving_places=engine.places,
        serving_places_free=max(0, engine.free_places),
        open_requests=len(engine.request_ids),
        adapters=adapters.versions(),
        counts=_counts(adapters.stats(), prefixes.stats()),
    )


def _counts(adapters: AdapterCacheStats, prefixes: PrefixStats) -> ServingCounts:
    return ServingCounts(
        adapter_hits=adapters.device_hits,
        adapter_host_hits=adapters.source.host_hits,
        adapter_loads=adapters.source.database_loads,
        adapter_failed_loads=adapters.source.failed_loads,
        adapter_evictions=adapters.evictions,
        prefix_hits=prefixes.hits,
        prefix_saved_tokens=prefixes.saved_tokens,
        prefix_evictions=prefixes.evictions,
    )
