"""Gives every request an id (`x-request-id`, taken over if the client sent a sane one) and logs how it ended.

A defect is answered here and not further out, so that its 500 and its traceback carry the id too.
"""

import re
import time

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import error_response
from app.core.errors import ServiceError
from app.core.ids import new_id

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestLogMiddleware:
    """Logs method, path, status and duration; never a body, a query or a header."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _SANE_ID.fullmatch(given) else new_id("req")
        status: int | None = None
        started = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self.app(scope, receive, send_with_id)
            except Exception as error:
                structlog.get_logger().error("request failed", exc_info=error)
                if status is not None:
                    raise
                refusal = ServiceError("The service failed to handle this request", code="internal_error")
                await error_response(refusal)(scope, receive, send_with_id)
            finally:
                structlog.get_logger().info(
                    "request",
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    ms=round(1000 * (time.perf_counter() - started), 1),
                )
