"""Loads of adapter weights beside the worker's one loop, on threads of their own. Knows not where weights come from.

Used from one thread; only the loads themselves run elsewhere.
"""

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from queue import SimpleQueue

from app.contracts.adapters import VersionKey
from workers.lora.adapter import AdapterWeights

Load = Callable[[], AdapterWeights]
CLOSE_SECONDS = 1.0


class BackgroundLoads:
    """At most `limit` loads are on their way or wait to be taken; their threads do not keep the process from ending."""

    def __init__(self, *, threads: int, limit: int) -> None:
        """Threads start with the first load."""
        self._threads = [threading.Thread(target=self._work, name="adapter load", daemon=True) for _ in range(threads)]
        self._limit = limit
        self._queue: SimpleQueue[tuple[Load, Future[AdapterWeights]] | None] = SimpleQueue()
        self._loads: dict[VersionKey, Future[AdapterWeights]] = {}

    def __contains__(self, key: VersionKey) -> bool:
        return key in self._loads

    @property
    def has_room(self) -> bool:
        """Whether another load may begin."""
        return len(self._loads) < self._limit

    @property
    def pending(self) -> int:
        """How many loads have not ended."""
        return sum(not future.done() for future in list(self._loads.values()))

    def start(self, key: VersionKey, load: Load) -> None:
        """Begin a load. The caller has seen to it that there is room and that the key has none yet."""
        for thread in self._threads:
            if thread.ident is None:
                thread.start()
        future: Future[AdapterWeights] = Future()
        self._loads[key] = future
        self._queue.put((load, future))

    def take(self, key: VersionKey) -> AdapterWeights | None:
        """Return a load's result and forget it, None while there is none. Raises what the load raised."""
        future = self._loads.get(key)
        if future is None or not future.done():
            return None
        del self._loads[key]
        return future.result()

    def ended(self) -> list[VersionKey]:
        """Return the keys of the loads that have ended and were not taken."""
        return [key for key, future in self._loads.items() if future.done()]

    def wait(self, seconds: float) -> None:
        """Wait until one of the pending loads has ended, at most so long."""
        pending = [future for future in self._loads.values() if not future.done()]
        if pending:
            wait(pending, seconds, FIRST_COMPLETED)

    def close(self) -> None:
        """Let the threads end after what they are at; one that hangs is left behind."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            load, future = item
            try:
                future.set_result(load())
            except BaseException as error:
                future.set_exception(error)
