"""Turns SIGTERM and SIGINT into a wish to stop that the loop honours at its next step."""

import signal
import threading


def stop_on_signals() -> threading.Event:
    """Return an event that is set by SIGTERM or SIGINT. Call from the main thread."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping
