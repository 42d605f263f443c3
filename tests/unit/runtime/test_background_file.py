"""A file written in a thread of its own: read when it is done, stopped when nobody wants it, never beyond its cap."""

import threading
import time
from typing import BinaryIO

import pytest

from workers.runtime.background_file import BackgroundFile, OutputTooLargeError


def test_what_was_written_is_read_from_its_start() -> None:
    def write(sink: BinaryIO) -> None:
        sink.write(b"header?")
        sink.write(b" and the rest")
        sink.seek(0)
        sink.write(b"HEADER!")

    with BackgroundFile(write, max_bytes=100) as background:
        assert background.file().read() == b"HEADER! and the rest"
        assert not background.running


def test_nothing_is_waited_for_while_it_is_written() -> None:
    go_on = threading.Event()

    def write(sink: BinaryIO) -> None:
        go_on.wait(10)
        sink.write(b"late")

    with BackgroundFile(write, max_bytes=100) as background:
        assert background.running
        go_on.set()
        assert background.file().read() == b"late"


def test_leaving_stops_the_writer() -> None:
    began, ended = threading.Event(), threading.Event()

    def write(sink: BinaryIO) -> None:
        try:
            while True:
                sink.write(b"more")
                began.set()
                time.sleep(0.001)
        finally:
            ended.set()

    with BackgroundFile(write, max_bytes=1 << 30):
        assert began.wait(10)
    assert ended.is_set()


def test_a_file_beyond_its_cap_is_refused() -> None:
    def write(sink: BinaryIO) -> None:
        sink.write(b"x" * 60)
        sink.write(b"x" * 41)

    with BackgroundFile(write, max_bytes=100) as background, pytest.raises(OutputTooLargeError, match="than 100 bytes"):
        background.file()


def test_what_the_writer_raises_is_raised_here() -> None:
    def write(sink: BinaryIO) -> None:
        raise ValueError("no such format")

    with BackgroundFile(write, max_bytes=100) as background, pytest.raises(ValueError, match="no such format"):
        background.file()
