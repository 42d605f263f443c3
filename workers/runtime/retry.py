"""Waits out a database that is away for a while, without stopping the loop: other work goes on between the tries."""

import time
from collections.abc import Callable, Generator
from typing import TypeVar

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError

log = structlog.get_logger()

T = TypeVar("T")
Pauses = Generator[float, None, T]
"""Yields seconds for which the caller need not come back; returns the result."""
DATABASE_AWAY = (OperationalError, InterfaceError)
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0


def patiently(call: Callable[[], T], *, what: str, patience: float) -> Pauses[T]:
    """Return `call()`, trying again while the database is away, for at most `patience` seconds after the first try.

    Raises the last database error when patience ends. A commit whose answer was lost may have happened: only call what
    is fenced or idempotent.
    """
    deadline = time.monotonic() + patience
    pause = FIRST_PAUSE
    while True:
        try:
            return call()
        except DATABASE_AWAY as error:
            if time.monotonic() + pause > deadline:
                raise
            log.warning("database away", doing=what, error=str(error.orig), retry_in=pause)
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)
