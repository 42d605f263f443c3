"""Writes a file in a thread of its own, so that requests are served meanwhile. Knows nothing of what is written.

Ends early when told to, or when the file grows beyond its cap.
"""

import io
import tempfile
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputTooLargeError(Exception):
    """The file takes more bytes than it may."""


class _StoppedError(Exception):
    """Nobody wants the output any more."""


class _Sink(io.BufferedRandom):
    """A temporary file that counts."""

    def __init__(self, max_bytes: int, stop: threading.Event) -> None:
        super().__init__(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115 (closed with this)
        self._max_bytes, self._stop = max_bytes, stop

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write, unless told to stop. Raises OutputTooLargeError."""
        buffer = memoryview(data)
        if self._stop.is_set():
            raise _StoppedError
        if self.tell() + buffer.nbytes > self._max_bytes:
            raise OutputTooLargeError(f"the merged model takes more than {self._max_bytes} bytes, which is the limit")
        return super().write(buffer)


class BackgroundFile:
    """What `write` writes; the file is gone when the `with` block ends, and so is the thread."""

    def __init__(self, write: Callable[[BinaryIO], None], *, max_bytes: int) -> None:
        self._write = write
        self._stop = threading.Event()
        self._sink = _Sink(max_bytes, self._stop)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="background-file", daemon=True)

    def __enter__(self) -> "BackgroundFile":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self._sink.close()

    @property
    def running(self) -> bool:
        """Whether the file is still being written."""
        return self._thread.is_alive()

    def file(self) -> io.BufferedRandom:
        """Return the written file at its start. Raises what `write` raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._sink.seek(0)
        return self._sink

    def _run(self) -> None:
        try:
            self._write(self._sink)
            self._sink.flush()
        except Exception as error:
            self._error = error
