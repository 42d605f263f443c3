"""`python -m workers.main`: one worker process, with one base model on one device."""

import argparse
import os
import sys

import structlog
import torch

from app.bus.connection import connect
from app.core.ids import new_id
from app.core.logging import configure_logging
from app.core.settings import BaseModelSource, Settings, SettingsError, get_settings
from app.db.session import Database
from workers.loading.base import LoadedBase, load_base_model
from workers.loading.checkpoint import LoadingError
from workers.runtime.fault_points import FaultPoints
from workers.runtime.shutdown import stop_on_signals
from workers.runtime.worker import WorkerStartError, run_worker

log = structlog.get_logger()


def main(arguments: list[str] | None = None) -> int:
    """Run a worker until SIGTERM; return the exit status (2 when it cannot be configured)."""
    parser = argparse.ArgumentParser(prog="python -m workers.main", description=__doc__)
    parser.add_argument("--base-model", help="id of a base model of graft.toml; default the first")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N; default as configured")
    options = parser.parse_args(arguments)
    stopping = stop_on_signals()
    try:
        settings = get_settings()
        configure_logging(settings.log_level)
        faults = FaultPoints.from_environment(os.environ)
        source = choose_source(settings, options.base_model)
        database_url, redis_url = settings.resolved_database_url(), settings.resolved_redis_url()
        base = _load(source, options.device or source.device, settings.threads)
        run_worker(
            base,
            settings,
            worker_id=new_id("wkr"),
            database=Database(database_url),
            heartbeat_database=Database(database_url),
            bus=connect(redis_url),
            heartbeat_bus=connect(redis_url),
            faults=faults,
            stopping=stopping,
        )
    except (SettingsError, LoadingError, WorkerStartError) as error:
        log.error("worker cannot start", error=str(error))
        return 2
    return 0


def choose_source(settings: Settings, base_model: str | None) -> BaseModelSource:
    """Return the named base model, or the first. Raises SettingsError when there is none of that id."""
    sources = settings.base_models()
    if base_model is None:
        return sources[0]
    for source in sources:
        if source.id == base_model:
            return source
    known = ", ".join(source.id for source in sources)
    raise SettingsError(f"unknown base model {base_model!r}: choose one of {known}")


def _load(source: BaseModelSource, device: str, threads: int | None) -> LoadedBase:
    if threads is not None:
        torch.set_num_threads(threads)
    log.info("loading base model", base_model=source.id, source=source.source, device=device)
    base = load_base_model(
        source.source, model_id=source.id, device=device, dtype=source.dtype, quantization=source.quantization
    )
    if base.model.device.type == "cpu":
        # A resumed run must end bit-identical; filling memory before it is written would only cost time.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(True)
    return base


if __name__ == "__main__":
    sys.exit(main())
