"""How a training run can fail. Knows nothing of jobs or HTTP; the runtime turns these into a job's error."""


class TrainingError(Exception):
    """The run cannot end well. `code` is stable and for programs, the message is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class SnapshotError(Exception):
    """A snapshot is corrupt, of another format, or belongs to another run; the message says which."""
