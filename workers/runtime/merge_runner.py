"""Runs one claimed merge in slices: export, storing, and the one fenced transaction that makes the output a file.

A generator as a training job's runner is: it yields the seconds for which the caller need not come back.
"""

import hashlib
from collections.abc import Iterator
from typing import BinaryIO

import structlog

from app.db import queue
from app.db.blobs import CHUNK_BYTES
from app.db.queue import ClaimedMerge, StagedBytes, StaleLeaseError
from app.db.repositories import adapters
from app.db.tables import File
from workers.export import export_merged
from workers.lora.adapter import AdapterWeights
from workers.runtime.adapter_loader import read_adapter
from workers.runtime.background_file import BackgroundFile
from workers.runtime.heartbeat import LeaseWatch
from workers.runtime.job_runner import GIVE_BACK_PATIENCE, READ_PATIENCE, JobRoom
from workers.runtime.recorder import Recorder
from workers.runtime.retry import Pauses, patiently
from workers.runtime.settle import FINISH_PATIENCE, settle
from workers.training.errors import TrainingError
from workers.training.work import Working

log = structlog.get_logger()
LOOK_SECONDS = 0.05
CHUNKS_AT_ONCE = 8
"""MiB in one transaction: SQLite's other writers wait about a tenth of a second for it."""
SUFFIX = {"hf": "tar", "gguf": "gguf"}


def run_merge(room: JobRoom, job: ClaimedMerge, watch: LeaseWatch) -> Working[float, bool]:
    """Merge to the end, to a cancellation, or until the job is given back: paused, or the worker stops.

    Returns whether this ended the job; False when it was given back or left to another worker.
    """
    recorder = Recorder(room.database, watch)
    return (yield from settle(room.database, job.lease, recorder, _merge(room, job, watch, recorder)))


def _merge(room: JobRoom, job: ClaimedMerge, watch: LeaseWatch, recorder: Recorder) -> Pauses[bool]:
    adapter = yield from patiently(lambda: _weights(room, job), what="read version", patience=READ_PATIENCE)
    what = f"version {job.config.version} of {job.adapter_name} into {room.info.id} as {job.config.format}"
    recorder.note(f"Merging {what} (attempt {job.attempts})")
    recorder.flush()

    def write(sink: BinaryIO) -> None:
        export_merged(room.base, adapter, job.config.format, sink)

    with BackgroundFile(write, max_bytes=job.config.max_bytes) as export:
        while export.running:
            ended = yield from _ended_early(room, job, watch)
            if ended is not None:
                return ended
            yield LOOK_SECONDS
        output = yield from _store(room, job, watch, export.file())
    if isinstance(output, bool):
        return output
    room.faults.hit("publish.before")

    def finish() -> File:
        with room.faults.at_commit("publish.before_commit"):
            return queue.finish_merged(room.database, job.lease, output, _filename(job))

    file = yield from patiently(finish, what="publish", patience=FINISH_PATIENCE)
    room.faults.hit("publish.after")
    log.info("merge succeeded", job=job.lease.job_id, file=file.id, bytes=file.bytes)
    return True


def _store(room: JobRoom, job: ClaimedMerge, watch: LeaseWatch, source: BinaryIO) -> Pauses[StagedBytes | bool]:
    """Return what was stored, or how the job ended meanwhile."""
    blob_id = yield from patiently(
        lambda: queue.begin_staging(room.database, job.lease), what="store", patience=FINISH_PATIENCE
    )
    digest, size, position = hashlib.sha256(), 0, 0
    for chunks in _batches(source):
        ended = yield from _ended_early(room, job, watch)
        if ended is not None:
            return ended
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)

        def extend(at: int = position, pieces: list[bytes] = chunks) -> None:
            queue.extend_staged(room.database, job.lease, blob_id, at, pieces)

        yield from patiently(extend, what="store", patience=FINISH_PATIENCE)
        position += len(chunks)
        yield 0.0
    return StagedBytes(blob_id, digest.hexdigest(), size)


def _batches(source: BinaryIO) -> Iterator[list[bytes]]:
    while chunks := [chunk for _ in range(CHUNKS_AT_ONCE) if (chunk := source.read(CHUNK_BYTES))]:
        yield chunks


def _ended_early(room: JobRoom, job: ClaimedMerge, watch: LeaseWatch) -> Pauses[bool | None]:
    """End or give back a job that is not to go on, and return whether it has ended; None: go on."""
    if watch.lost:
        raise StaleLeaseError(f"job {job.lease.job_id}: the heartbeat was refused")
    if watch.cancel_requested:
        yield from patiently(
            lambda: queue.finish_cancelled(room.database, job.lease), what="cancel", patience=FINISH_PATIENCE
        )
        return True
    if watch.pause_requested or room.stopping.is_set():
        yield from patiently(
            lambda: queue.give_back(room.database, job.lease), what="give back", patience=GIVE_BACK_PATIENCE
        )
        return False
    return None


def _weights(room: JobRoom, job: ClaimedMerge) -> AdapterWeights:
    tenant_id = job.lease.tenant_id
    with room.database.read() as session:
        version = adapters.get_version_by_id(session, tenant_id, job.version_id)
        if version is None:
            raise TrainingError("version_missing", f"version {job.version_id} to merge does not exist")
        return read_adapter(session, tenant_id, version.weights_id, version.config, room.info)


def _filename(job: ClaimedMerge) -> str:
    return f"{job.adapter_name}-{job.config.version}.{SUFFIX[job.config.format]}"
