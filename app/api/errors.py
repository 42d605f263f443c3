"""Every refusal as OpenAI's error object: `{"error": {"message", "type", "param", "code"}}`. Knows no route."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, cast

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from redis.exceptions import RedisError
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.core.errors import InvalidRequestError, NotFoundError, ServiceError, TooLargeError, UnavailableError

MAX_REPORTED_ERRORS = 20
RETRY_SECONDS = 5
_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "json_invalid": "invalid_json",
}
_UNION_MEMBERS = frozenset({"int", "float", "str", "bool"})
_OWN_CODES = frozenset({"unsupported_parameter"})
_STATUS_CODES = {404: "route_not_found", 405: "method_not_allowed"}


class ClientGoneError(Exception):
    """The client closed the connection before its answer was ready; nobody is left to tell."""


def error_body(error: ServiceError) -> dict[str, object]:
    """Return the error object; text that is not Unicode (lone surrogates) is escaped."""
    message = error.message.encode("utf-8", "backslashreplace").decode()
    param = error.param and error.param.encode("utf-8", "backslashreplace").decode()
    return {"error": {"message": message, "type": error.type, "param": param, "code": error.code}}


def error_response(error: ServiceError) -> JSONResponse:
    """Return the answer for a refusal, with Retry-After and WWW-Authenticate where they belong."""
    headers = {}
    if error.retry_after:
        headers["Retry-After"] = str(error.retry_after)
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(error), status_code=error.status, headers=headers)


def field_path(location: Sequence[int | str]) -> str:
    """Return `lora.targets[0]` for a validation location; the names of union members are left out."""
    if location[0] == "header":
        return str(location[1]).title()
    path = ""
    for part in location[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in _UNION_MEMBERS:
            path += f".{part}" if path else part
    return path


def _explain(problem: dict[str, Any]) -> tuple[str, str, str]:
    """Return (field path, what was expected, code) of one Pydantic problem."""
    kind, location = str(problem["type"]), problem["loc"]
    if kind == "json_invalid":
        return "", f"not JSON: {problem['ctx']['error']} at character {location[-1]}", _CODES[kind]
    if kind == "extra_forbidden":
        return ".".join(filter(None, [field_path(location[:-1]), str(location[-1])])), "unknown field", _CODES[kind]
    if kind == "missing":
        return field_path(location), "required, but missing", _CODES[kind]
    given = problem.get("input")
    shown = f" (got {given!r})" if isinstance(given, int | float | str) and len(repr(given)) <= 60 else ""
    message = str(problem["msg"]).removeprefix("Value error, ") + shown
    return field_path(location), message, kind if kind in _OWN_CODES else "invalid_value"


def from_validation(error: RequestValidationError) -> ServiceError:
    """Return the refusal for a request that does not fit its schema; a malformed id in the path is simply not found."""
    problems = error.errors()
    found: dict[str, list[str]] = {}
    codes: dict[str, str] = {}
    for problem in problems:
        path, message, code = _explain(problem)
        found.setdefault(path, []).append(message)
        codes.setdefault(path, code)
    where = str(problems[0]["loc"][0])
    message = "; ".join(f"{path or where}: {', or '.join(found[path])}" for path in list(found)[:MAX_REPORTED_ERRORS])
    first = next(iter(found))
    if where == "path":
        return NotFoundError(f"No such resource: {message}", code="not_found", param=first)
    return InvalidRequestError(message, code=codes[first], param=first or None)


def from_http(error: HTTPException) -> ServiceError:
    """Return the refusal for what the framework itself refuses: no route, wrong method, body too large."""
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return TooLargeError("The body is larger than this route accepts", code="request_too_large")
    code = _STATUS_CODES.get(error.status_code, "invalid_request")
    return InvalidRequestError(str(error.detail), code=code, status=error.status_code)


def from_outage(error: Exception) -> UnavailableError:
    """Return the refusal while the database or Redis cannot be reached."""
    what = "database" if isinstance(error, SQLAlchemyError) else "redis"
    structlog.get_logger().error("dependency unavailable", dependency=what, exc_info=error)
    return UnavailableError(
        f"The service cannot reach its {what}; try again shortly", code=f"{what}_unavailable", retry_after=RETRY_SECONDS
    )


def install_error_handlers(app: FastAPI) -> None:
    """Make every refusal answer in OpenAI's shape; what nobody foresaw is answered where requests are logged."""

    async def refused(_request: Request, error: Exception) -> JSONResponse:
        return error_response(cast(ServiceError, error))

    async def invalid(_request: Request, error: Exception) -> JSONResponse:
        return error_response(from_validation(cast(RequestValidationError, error)))

    async def framework(_request: Request, error: Exception) -> JSONResponse:
        refusal = from_http(cast(HTTPException, error))
        answer = error_response(refusal)
        answer.headers.update(cast(HTTPException, error).headers or {})
        return answer

    async def outage(_request: Request, error: Exception) -> JSONResponse:
        return error_response(from_outage(error))

    async def gone(_request: Request, _error: Exception) -> Response:
        return Response(status_code=499)

    app.add_exception_handler(ClientGoneError, gone)
    app.add_exception_handler(ServiceError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(OperationalError, outage)
    app.add_exception_handler(PoolTimeoutError, outage)
    app.add_exception_handler(RedisError, outage)
