"""Named places where a test can kill or stop the process. Without `GRAFT_FAULT` every one of them does nothing.

`GRAFT_FAULT` is a comma-separated list of `POINT:ACTION[:COUNT]`: at the COUNT-th time (default the first) that POINT
is reached, `kill` sends this process SIGKILL and `stop` sends it SIGSTOP.
"""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, get_args

from sqlalchemy import event
from sqlalchemy.orm import Session

Point = Literal[
    "claim.after",
    "step.after",
    "snapshot.before",
    "snapshot.after",
    "checkpoint.after",
    "publish.before",
    "publish.before_commit",
    "publish.after",
]
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class FaultPoints:
    """The armed points of one process and how often each was reached."""

    def __init__(self, armed: Mapping[str, tuple[str, int]] | None = None) -> None:
        """`armed` maps a point to its action and the hit that triggers it. Raises ValueError for unknown names."""
        self._armed = dict(armed or {})
        for point, (action, _) in self._armed.items():
            if point not in get_args(Point) or action not in SIGNALS:
                raise ValueError(f"GRAFT_FAULT: unknown {point}:{action}")
        self._hits: Counter[str] = Counter()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "FaultPoints":
        """Read `GRAFT_FAULT`. Raises ValueError when it cannot be understood."""
        armed = {}
        for item in filter(None, environ.get("GRAFT_FAULT", "").split(",")):
            point, action, *count = item.split(":")
            armed[point] = (action, int(count[0]) if count else 1)
        return cls(armed)

    def hit(self, point: Point) -> None:
        """Pass a named point."""
        if point not in self._armed:
            return
        self._hits[point] += 1
        action, count = self._armed[point]
        if self._hits[point] == count:
            os.kill(os.getpid(), SIGNALS[action])

    @contextmanager
    def at_commit(self, point: Point) -> Iterator[None]:
        """Pass a named point inside each transaction of this block and thread, when all but its commit is done."""
        if point not in self._armed:
            yield
            return
        thread = threading.get_ident()

        def passing(_session: Session) -> None:
            if threading.get_ident() == thread:
                self.hit(point)

        event.listen(Session, "before_commit", passing)
        try:
            yield
        finally:
            event.remove(Session, "before_commit", passing)
