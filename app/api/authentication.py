"""Recognises the tenant of every `/v1` request before its body is read, so that no stranger's upload is taken in."""

from typing import cast

from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.deps import Resources
from app.api.errors import error_response, from_outage
from app.core.errors import ServiceError
from app.core.security import presented_key
from app.services.tenants import authenticate


class AuthenticationMiddleware:
    """Sets `request.state.tenant_id` and `.admin`, or answers 401."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = presented_key(headers.get("authorization"), headers.get("x-api-key"))
        database = cast(Resources, scope["app"].state.resources).database
        try:
            caller = await run_in_threadpool(authenticate, database, key)
        except ServiceError as refusal:
            await error_response(refusal)(scope, receive, send)
        except (OperationalError, PoolTimeoutError) as error:
            await error_response(from_outage(error))(scope, receive, send)
        else:
            scope.setdefault("state", {}).update(tenant_id=caller.tenant_id, admin=caller.admin)
            await self.app(scope, receive, send)
