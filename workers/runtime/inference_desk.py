"""Carries inference requests from the bus to the engine and events back.

While Redis is away inference pauses. Whether earlier events survived is not known, and none may be missing or said
twice, so the requests it was working on end with an error as soon as Redis is back.
"""

import time
from collections.abc import Iterable

import redis
import structlog
from pydantic import ValidationError

from app.bus.aborts import aborted
from app.bus.inference_requests import poll
from app.bus.token_streams import emit_all
from app.contracts.inference import ErrorEvent
from workers.inference.engine import Emissions, Engine

log = structlog.get_logger()
RECONNECT_SECONDS = 0.5
INTERRUPTED = ErrorEvent(status=503, code="interrupted", message="the message bus was interrupted, try again")
FAILED = ErrorEvent(status=500, code="worker_error", message="the worker failed on this batch of requests")
STOPPING = ErrorEvent(status=503, code="worker_stopping", message="the worker is stopping, try again")


class InferenceDesk:
    """One engine's requests on one bus."""

    def __init__(self, engine: Engine, bus: redis.Redis, base_model: str) -> None:
        self._engine, self._bus, self._base_model = engine, bus, base_model
        self._away_until = 0.0
        self._unsaid: Emissions = {}

    @property
    def busy(self) -> bool:
        """Whether there is something to decode now."""
        return self._engine.busy and not self.away

    @property
    def open_requests(self) -> int:
        """How many requests have not ended."""
        return len(self._engine.request_ids)

    @property
    def away(self) -> bool:
        """Whether Redis failed so lately that trying again must wait."""
        return time.monotonic() < self._away_until

    def receive(self, timeout: float, *, accept: bool, wakeups: bool = False) -> bool:
        """Take in new requests (if `accept`) and aborts, waiting up to `timeout` seconds for the first or a wake-up.

        Returns whether a wake-up was taken, which only happens if `wakeups`. Returns at once while Redis is away.
        """
        if self.away:
            return False
        woken = False
        try:
            if self._unsaid:
                emit_all(self._bus, self._unsaid)
                self._unsaid = {}
            if accept and self._engine.has_room:
                taken = poll(self._bus, self._base_model, timeout, wakeups=wakeups)
                woken = taken.woken
                for request in taken.requests:
                    self._engine.submit(request)
            self._engine.abort(aborted(self._bus, self._engine.request_ids))
        except redis.RedisError as error:
            self._lose(error)
        except ValidationError as error:
            log.error("requests dropped that this version cannot read", error=str(error))
        return woken

    def step(self) -> None:
        """Let the engine do one step and send what came out."""
        try:
            emissions = self._engine.step()
        except Exception:
            log.exception("inference step failed")
            emissions = self._engine.fail_all(FAILED)
        self._send(emissions)

    def close(self) -> None:
        """Tell all requests still here that the worker stops."""
        self._send(self._engine.fail_all(STOPPING))

    def _send(self, emissions: Emissions) -> None:
        if not emissions:
            return
        try:
            emit_all(self._bus, emissions)
        except redis.RedisError as error:
            self._lose(error, emissions)

    def _lose(self, error: redis.RedisError, ended: Iterable[str] = ()) -> None:
        log.warning("redis away, inference pauses", error=str(error))
        self._away_until = time.monotonic() + RECONNECT_SECONDS
        lost = {*ended, *self._engine.fail_all(INTERRUPTED)}
        self._unsaid |= {request_id: [INTERRUPTED] for request_id in lost}
