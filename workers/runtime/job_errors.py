"""What a tenant is told when a job fails: a stable code and a sentence. Surprises are logged whole and told briefly."""

import structlog
import torch

from app.contracts.adapter_format import AdapterFormatError
from app.contracts.targets import UnknownTargetError
from app.db.blobs import BlobCorruptError, BlobNotFoundError
from app.text.chat_template import ChatTemplateError
from app.text.examples import ExampleError
from workers.export import ExportError
from workers.runtime.background_file import OutputTooLargeError
from workers.training.errors import TrainingError

log = structlog.get_logger()

KNOWN: list[tuple[type[Exception], str]] = [
    (ExampleError, "invalid_training_data"),
    (ChatTemplateError, "invalid_training_data"),
    (UnknownTargetError, "unknown_target"),
    (AdapterFormatError, "adapter_unusable"),
    (BlobNotFoundError, "data_missing"),
    (BlobCorruptError, "data_corrupt"),
    (ExportError, "format_not_supported"),
    (OutputTooLargeError, "checkpoint_too_large"),
]


def job_error(error: Exception) -> dict[str, object]:
    """Return the job's `error` object for an exception that ended it."""
    if isinstance(error, TrainingError):
        return {"code": error.code, "message": error.message, "param": None}
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        message = "the run needs more memory than the worker has; use a smaller batch_size, seq_len or rank"
        return {"code": "out_of_memory", "message": message, "param": None}
    code = next((code for kind, code in KNOWN if isinstance(error, kind)), None)
    if code is not None:
        return {"code": code, "message": str(error), "param": None}
    log.error("job failed unexpectedly", exc_info=error)
    message = f"the worker met an unexpected {type(error).__name__}; its log has the details"
    return {"code": "internal_error", "message": message, "param": None}
