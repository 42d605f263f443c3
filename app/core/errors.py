"""The one family of refusals the service raises. Each carries its HTTP status, so the edge only has to render it.

Knows OpenAI's error object (`message, type, param, code`); knows nothing of HTTP frameworks.
"""


class ServiceError(Exception):
    """A refusal with its status; `param` names the field at fault and `retry_after` is in seconds."""

    status = 500
    type = "server_error"

    def __init__(
        self, message: str, *, code: str, param: str | None = None, status: int | None = None, retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.status = status or self.status
        self.retry_after = retry_after


class InvalidRequestError(ServiceError):
    """The request cannot be served as it is; repeating it will not help."""

    status = 400
    type = "invalid_request_error"


class AuthenticationError(ServiceError):
    """No key, an unknown one or a revoked one; which of the latter two is not told."""

    status = 401
    type = "invalid_request_error"


class NotFoundError(ServiceError):
    """It does not exist, or belongs to another tenant; the answer is the same for both."""

    status = 404
    type = "invalid_request_error"


class ConflictError(ServiceError):
    """The request contradicts what is stored."""

    status = 409
    type = "invalid_request_error"


class TooLargeError(ServiceError):
    """The body is above its cap."""

    status = 413
    type = "invalid_request_error"


class TrainingFailedError(ServiceError):
    """A job that the client waited for ended without a result."""

    status = 422
    type = "training_error"


class QuotaError(ServiceError):
    """The tenant is at its own limit."""

    status = 429
    type = "rate_limit_error"


class UnavailableError(ServiceError):
    """The service lacks the capacity now; the same request may work later."""

    status = 503
    type = "server_error"


def not_found(kind: str, name: str, *, param: str | None = None) -> NotFoundError:
    """Return the refusal for a `kind` (file, job, adapter, model) that this tenant does not have."""
    return NotFoundError(f"No such {kind}: {name!r}", code=f"{kind.replace(' ', '_')}_not_found", param=param)
