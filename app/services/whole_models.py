"""How much room a whole model takes in the database, and the refusal of one that is too large. Told before any work."""

from app.contracts.base_models import BaseModelInfo
from app.contracts.training import JobConfig
from app.core.errors import InvalidRequestError

FLOAT32_BYTES, HALF_BYTES = 4, 2
RESUME_COPIES = 6
"""A resume point holds weights and two moments, and the same of the last state known to be good."""


def full_run_bytes(info: BaseModelInfo) -> int:
    """Return the most that a run of mode `full` stores at once, its resume point; all in float32."""
    return RESUME_COPIES * FLOAT32_BYTES * info.parameters


def refuse_large_run(info: BaseModelInfo, config: JobConfig, limit: int) -> None:
    """Raise InvalidRequestError for a run on whole models above the limit."""
    if config.mode == "full":
        refuse_larger(full_run_bytes(info), limit, what=f"a resume point of {info.id} in mode full", param="mode")


def merged_bytes(info: BaseModelInfo) -> int:
    """Return about what a merged model takes, in the base's dtype."""
    return info.parameters * (FLOAT32_BYTES if info.dtype in {"float32", "float64"} else HALF_BYTES)


def refuse_larger(estimate: int, limit: int, *, what: str, param: str) -> None:
    """Raise InvalidRequestError if a whole model of `estimate` bytes is above the limit."""
    if estimate > limit:
        raise InvalidRequestError(
            f"{param}: {what} takes about {estimate} bytes, but at most {limit} are stored here "
            "(GRAFT_MAX_CHECKPOINT_BYTES)",
            code="checkpoint_too_large",
            param=param,
        )
