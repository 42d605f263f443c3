"""Carries inference requests from the bus to the engine and events back.

While Redis is away inference pauses. Whether earlier events survived is not known, and none may be missing or said
twice, so the requests it was working on end with an error as soon as Redis is back.
"""

import time
from collections.abc import Iterable

import redis
import structlog

from app.bus import affinity, presence
from app.bus.aborts import aborted
from app.bus.affinity import name_of
from app.bus.inference_requests import poll
from app.bus.token_streams import emit_all
from app.contracts.inference import ErrorEvent
from workers.inference.engine import Emissions, Engine
from workers.runtime.recent_adapters import RecentAdapters

log = structlog.get_logger()
RECONNECT_SECONDS = 0.5
INTERRUPTED = ErrorEvent(status=503, code="interrupted", message="the message bus was interrupted, try again")
FAILED = ErrorEvent(status=500, code="worker_error", message="the worker failed on this batch of requests")
STOPPING = ErrorEvent(status=503, code="worker_stopping", message="the worker is stopping, try again")


class InferenceDesk:
    """One engine's requests on one bus."""

    def __init__(
        self, engine: Engine, bus: redis.Redis, base_model: str, *, worker_id: str, places: int, held: int
    ) -> None:
        """`places` is how many requests run at once, `held` how many adapter versions are kept between requests."""
        self._engine, self._bus, self._base_model, self._worker_id = engine, bus, base_model, worker_id
        self._places = places
        self._adapters = RecentAdapters(held)
        self._published_load: int | None = None
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
            if accept:
                woken = self._take(timeout, wakeups)
            self._engine.abort(aborted(self._bus, self._engine.request_ids))
        except redis.RedisError as error:
            self._lose(error)
        return woken

    def leave(self) -> None:
        """Take no more requests, for good; those that wait for this worker alone go to the others."""
        try:
            presence.leave(self._bus, self._worker_id, self._base_model)
        except redis.RedisError as error:
            log.warning("requests of this worker's own wait until it counts as gone", error=str(error))

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

    def _take(self, timeout: float, wakeups: bool) -> bool:
        if not self._engine.has_room:
            presence.hand_over(self._bus, self._worker_id, self._base_model)
            return False
        taken = poll(self._bus, self._base_model, timeout, worker_id=self._worker_id, wakeups=wakeups)
        if taken.unreadable:
            log.error("requests dropped that this version cannot read", requests=taken.unreadable)
        for request in taken.requests:
            self._engine.submit(request)
        self._publish([name_of(request.adapter) for request in taken.requests if request.adapter])
        return taken.woken

    def _publish(self, used: list[str]) -> None:
        load = self.open_requests - self._places
        if used or load != self._published_load:
            dropped = self._adapters.use(used)
            affinity.publish(self._bus, self._base_model, self._worker_id, held=used, dropped=dropped, load=load)
            self._published_load = load

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
