"""Builds one worker from its parts, announces it, and runs its loop."""

import threading
from functools import partial

import redis
import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.core.settings import Settings
from app.db.repositories import base_models, workers
from app.db.session import Database
from workers.inference.adapter_cache import AdapterCache
from workers.inference.engine import Engine
from workers.inference.prefixes import PrefixStore
from workers.inference.scheduler import Limits
from workers.loading.base import LoadedBase
from workers.lora.bank import AdapterBank
from workers.runtime.adapter_loader import AdapterLoader
from workers.runtime.fault_points import FaultPoints
from workers.runtime.free_memory import adapter_capacity, prefix_capacity, state_capacity, training_capacity
from workers.runtime.heartbeat import Heartbeat
from workers.runtime.inference_desk import InferenceDesk
from workers.runtime.job_desk import JobDesk
from workers.runtime.job_runner import JobRoom
from workers.runtime.loop import run_loop
from workers.runtime.retry import patiently
from workers.runtime.time_share import TimeShare
from workers.runtime.worker_state import state_of
from workers.training.memory import TrainingMemory
from workers.training.trainer import default_tokens_per_step

log = structlog.get_logger()
START_PATIENCE = 60.0
DRAIN_SECONDS = 25.0


class WorkerStartError(Exception):
    """The worker could not announce itself in the database."""


def run_worker(
    base: LoadedBase,
    settings: Settings,
    *,
    worker_id: str,
    database: Database,
    heartbeat_database: Database,
    bus: redis.Redis,
    heartbeat_bus: redis.Redis,
    faults: FaultPoints,
    stopping: threading.Event,
) -> None:
    """Serve and train until `stopping`. Raises WorkerStartError when the database cannot be used."""
    device = str(base.model.device)
    _register(database, base, worker_id, device, stopping)
    bank = AdapterBank(base.model)
    serving = range(settings.adapter_slots)
    training = range(settings.adapter_slots, settings.adapter_slots + settings.max_training_runs)
    loader = AdapterLoader(database, base.info, host_bytes=settings.adapter_host_bytes)
    max_bytes = settings.adapter_device_bytes or adapter_capacity(base.model.device)
    adapters = AdapterCache(serving, loader, bank, max_bytes=max_bytes)
    prefix_bytes = settings.prefix_bytes
    prefixes = PrefixStore(prefix_capacity(base.model.device) if prefix_bytes is None else prefix_bytes)
    state_bytes = settings.state_bytes or state_capacity(base.model, base.info.context_length)
    limits = Limits(settings.max_batch_sequences, state_bytes)
    engine = Engine(base.model, base.info, adapters, prefixes, limits=limits)
    heartbeat = Heartbeat(
        heartbeat_database,
        heartbeat_bus,
        worker_id=worker_id,
        base_model=base.info.id,
        seconds=settings.heartbeat_seconds,
        lease_seconds=settings.lease_seconds,
    )
    tokens_per_step = settings.tokens_per_step or default_tokens_per_step(base.model.device.type)
    memory = TrainingMemory(base.info, settings.training_memory_bytes or training_capacity(base.model, tokens_per_step))
    room = JobRoom(database, base, bank, faults, settings.snapshot_every_steps, stopping, memory, tokens_per_step)
    jobs = JobDesk(
        room,
        heartbeat,
        bus,
        slots=training,
        worker_id=worker_id,
        lease_seconds=settings.lease_seconds,
        max_attempts=settings.max_attempts,
        poll_seconds=settings.poll_seconds,
    )
    heartbeat.start(partial(state_of, engine, adapters, prefixes, jobs))
    log.info("worker ready", worker=worker_id, base_model=base.info.id, device=device, dtype=base.info.dtype)
    try:
        run_loop(
            InferenceDesk(
                engine,
                bus,
                base.info.id,
                worker_id=worker_id,
                places=settings.max_batch_sequences,
                held=settings.adapter_slots,
            ),
            jobs,
            stopping,
            _time_share(settings),
            poll_seconds=settings.poll_seconds,
            drain_seconds=DRAIN_SECONDS,
        )
    finally:
        heartbeat.stop()
        loader.close()
        database.dispose()
        bus.close()
    log.info("worker stopped", worker=worker_id)


def _time_share(settings: Settings) -> TimeShare:
    target = settings.serve_p99_ms and settings.serve_p99_ms / 1000
    return TimeShare(target_seconds=target, smallest_train_share=settings.train_share_min)


def _register(database: Database, base: LoadedBase, worker_id: str, device: str, stopping: threading.Event) -> None:
    def register() -> None:
        with database.write() as session:
            base_models.upsert(session, base.info)
            workers.register(session, worker_id=worker_id, base_model=base.info.id, device=device)

    try:
        for pause in patiently(register, what="register", patience=START_PATIENCE):
            if stopping.wait(pause):
                raise WorkerStartError("stopped before the database could be used")
    except SQLAlchemyError as error:
        raise WorkerStartError(f"the database cannot be used (is it migrated?): {error}") from error
