"""Refuses a body whose declared length is above its route's limit, in our error shape and before a byte is read.

The framework's own limit, set on the same routes, counts what arrives without a declared length.
"""

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.errors import error_response
from app.core.errors import TooLargeError


class DeclaredLengthMiddleware:
    """Knows the limit in bytes of each path prefix, and of all other paths."""

    def __init__(self, app: ASGIApp, limits: Mapping[str, int], otherwise: int) -> None:
        self.app = app
        self.limits = limits
        self.otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        limit = next((self.limits[p] for p in self.limits if scope.get("path", "").startswith(p)), self.otherwise)
        if declared.isdecimal() and int(declared) > limit:
            refusal = TooLargeError(
                f"The body has {declared} bytes, but this route accepts at most {limit}", code="request_too_large"
            )
            await error_response(refusal)(scope, receive, send)
        else:
            await self.app(scope, receive, send)
