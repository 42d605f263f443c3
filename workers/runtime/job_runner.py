"""Runs one claimed job in slices: data, training, snapshots, and the one fenced transaction that ends it.

Every function here is a generator: it yields the seconds for which the caller need not come back (0: as soon as you
like), so that requests are served in between, or a work for the model, whose answer it must be sent. A lost lease ends
everything quietly: another worker has the job.
"""

import threading
from collections.abc import Generator
from dataclasses import dataclass

from app.contracts.base_models import BaseModelInfo
from app.contracts.training import JobConfig
from app.db import queue
from app.db.blobs import read_blob
from app.db.queue import ClaimedJob, StaleLeaseError
from app.db.repositories import adapters
from app.db.session import Database
from app.text.tokenize import TokenizedExample
from workers.loading.base import LoadedBase
from workers.lora.adapter import AdapterWeights
from workers.lora.bank import AdapterBank
from workers.lora.new_adapter import new_full, new_lora, new_wsla
from workers.models.language_model import LanguageModel
from workers.runtime.adapter_loader import read_adapter
from workers.runtime.fault_points import FaultPoints
from workers.runtime.heartbeat import LeaseWatch
from workers.runtime.job_data import tokenized
from workers.runtime.publish import publish, save_checkpoint
from workers.runtime.recorder import Recorder
from workers.runtime.retry import Pauses, patiently
from workers.runtime.settle import FINISH_PATIENCE, settle
from workers.runtime.snapshots import SnapshotPace, resume, save_snapshot
from workers.training.errors import TrainingError
from workers.training.events import EpochDone, Finished, SetBack, StepDone
from workers.training.memory import TrainingMemory
from workers.training.trainer import TrainingRun
from workers.training.work import Work, Working

READ_PATIENCE, GIVE_BACK_PATIENCE = 60.0, 5.0


@dataclass(frozen=True)
class JobRoom:
    """What all jobs of a worker share."""

    database: Database
    base: LoadedBase
    bank: AdapterBank
    faults: FaultPoints
    snapshot_every_steps: int
    stopping: threading.Event
    memory: TrainingMemory
    tokens_per_step: int

    @property
    def model(self) -> LanguageModel:
        """The base model."""
        return self.base.model

    @property
    def info(self) -> BaseModelInfo:
        """What the service knows of the base model."""
        return self.base.info


def run_job(room: JobRoom, job: ClaimedJob, watch: LeaseWatch, slot: int) -> Working[float, bool]:
    """Run the job in `slot` of the bank to its end, to a cancellation, or until it is paused or the worker stops.

    Returns whether this ended the job; False when it was given back or left to another worker.
    """
    recorder = Recorder(room.database, watch)
    try:
        return (yield from settle(room.database, job.lease, recorder, _work(room, job, watch, recorder, slot)))
    finally:
        room.bank.clear(slot)


def _work(room: JobRoom, job: ClaimedJob, watch: LeaseWatch, recorder: Recorder, slot: int) -> Working[float, bool]:
    room.memory.require(job.config)
    run = yield from _prepare(room, job, recorder, slot)
    return (yield from _train(room, job, watch, run, recorder))


def _prepare(room: JobRoom, job: ClaimedJob, recorder: Recorder, slot: int) -> Pauses[TrainingRun]:
    train = yield from _examples(room, job, job.training_blob_id)
    validation = None
    if job.validation_blob_id is not None:
        validation = yield from _examples(room, job, job.validation_blob_id)
    retention = None
    if job.retention_blob_id is not None:
        retention = yield from _examples(room, job, job.retention_blob_id)
    start = yield from patiently(lambda: _start_weights(room, job), what="start", patience=READ_PATIENCE)
    run = TrainingRun(
        room.model, room.bank, slot, job.config, start, train, validation, retention,
        tokens_per_step=room.tokens_per_step,
    )  # fmt: skip
    recorder.note(f"Training started on {len(train)} examples (attempt {job.attempts})")
    yield from resume(room.database, job.lease, run, recorder)
    return run


def _examples(room: JobRoom, job: ClaimedJob, blob_id: str) -> Pauses[list[TokenizedExample]]:
    def read() -> bytes:
        with room.database.read() as session:
            return read_blob(session, job.lease.tenant_id, blob_id)

    jsonl = yield from patiently(read, what="read data", patience=READ_PATIENCE)
    return (yield from tokenized(room.info, jsonl))


def _start_weights(room: JobRoom, job: ClaimedJob) -> AdapterWeights:
    if job.parent_version_id is None:
        return _new_weights(room, job.config)
    tenant_id = job.lease.tenant_id
    with room.database.read() as session:
        parent = adapters.get_version_by_id(session, tenant_id, job.parent_version_id)
        if parent is None:
            raise TrainingError("parent_missing", f"version {job.parent_version_id} to continue from does not exist")
        return read_adapter(session, tenant_id, parent.weights_id, parent.config, room.info)


def _new_weights(room: JobRoom, config: JobConfig) -> AdapterWeights:
    if config.lora is not None:
        return new_lora(room.info, config.lora)
    return new_wsla(room.info) if config.mode == "wsla" else new_full(room.model)


def _train(
    room: JobRoom, job: ClaimedJob, watch: LeaseWatch, run: TrainingRun, recorder: Recorder
) -> Working[float, bool]:
    pace = SnapshotPace(room.snapshot_every_steps)
    at_rest = True
    """Whether stopping now loses no step of this attempt."""
    works, answer = run.works(), None
    while True:
        event = works.send(answer)
        answer = None
        if watch.lost:
            raise StaleLeaseError(f"job {job.lease.job_id}: the heartbeat was refused")
        if watch.cancel_requested:
            recorder.flush()
            yield from patiently(
                lambda: queue.finish_cancelled(room.database, job.lease), what="cancel", patience=FINISH_PATIENCE
            )
            return True
        if isinstance(event, StepDone):
            at_rest = False
            recorder.step(event.metrics)
            room.faults.hit("step.after")
        if (watch.pause_requested or room.stopping.is_set()) and (at_rest or isinstance(event, StepDone)):
            recorder.note("Training paused" + (": the worker is stopping" if room.stopping.is_set() else ""))
            yield from _give_back(room, job, run, recorder, snapshot=not at_rest)
            return False
        if isinstance(event, StepDone) and pace.due(event.metrics.step):
            with pace.taking():
                save_snapshot(room.database, job.lease, run, room.faults)
        elif isinstance(event, EpochDone):
            save_checkpoint(room.database, job.lease, room.info, event)
            room.faults.hit("checkpoint.after")
        elif isinstance(event, SetBack):
            recorder.warn(
                f"Steps up to {event.step} were not finite: went back to the last good state (time {event.times}), "
                f"on with {event.share:g} times the learning rate"
            )
        elif isinstance(event, Finished):
            recorder.flush()
            yield from publish(room.database, job, room.info, event, room.faults, patience=FINISH_PATIENCE)
            return True
        if isinstance(event, Work):
            answer = yield event
        else:
            yield 0.0


def _give_back(
    room: JobRoom, job: ClaimedJob, run: TrainingRun, recorder: Recorder, *, snapshot: bool
) -> Generator[float, None, None]:
    """Hand the job back uncharged; whoever takes it next goes on from here."""
    recorder.flush()
    if snapshot:
        save_snapshot(room.database, job.lease, run, room.faults)
    yield from patiently(
        lambda: queue.give_back(room.database, job.lease), what="give back", patience=GIVE_BACK_PATIENCE
    )
