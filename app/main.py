"""The HTTP application: `uvicorn app.main:create_app --factory`. Wires rooms together and holds no rule itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI

from app.api.authentication import AuthenticationMiddleware
from app.api.body_limits import DeclaredLengthMiddleware
from app.api.deps import Resources, bearer
from app.api.errors import install_error_handlers
from app.api.request_log import RequestLogMiddleware
from app.api.routes import (
    adapt,
    adapters,
    completions,
    embeddings,
    files,
    fine_tuning_jobs,
    health,
    merges,
    models,
    workers,
)
from app.bus.connection import connect, connect_async
from app.core.logging import configure_logging
from app.core.settings import Settings, get_settings
from app.db.session import Database

MAX_JSON_BYTES = 16 * 1024 * 1024
FORM_OVERHEAD_BYTES = 1024 * 1024
"""What a multipart body may have besides its file."""


def create_app(settings: Settings | None = None) -> FastAPI:
    """Return the application; without `settings`, those of the process's environment are read."""
    chosen = settings or get_settings()
    configure_logging(chosen.log_level)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        database = Database(chosen.resolved_database_url())
        client, async_client = connect(chosen.resolved_redis_url()), connect_async(chosen.resolved_redis_url())
        app.state.resources = Resources(chosen, database, client, async_client)
        try:
            yield
        finally:
            await async_client.aclose()
            client.close()
            database.dispose()

    app = FastAPI(title="Graft", version="0.1.0", lifespan=lifespan)
    uploads = [
        (files.router, chosen.max_file_bytes + FORM_OVERHEAD_BYTES),
        (adapters.router, chosen.max_adapter_bytes + FORM_OVERHEAD_BYTES),
    ]
    install_error_handlers(app)
    limits = {router.prefix: limit for router, limit in uploads}
    app.add_middleware(DeclaredLengthMiddleware, limits=limits, otherwise=MAX_JSON_BYTES)
    app.add_middleware(AuthenticationMiddleware)
    app.add_middleware(RequestLogMiddleware)
    app.include_router(health.router)
    for module in (fine_tuning_jobs, adapt, models, completions, embeddings, merges, workers):
        app.include_router(module.router, max_body_size=MAX_JSON_BYTES, dependencies=[Depends(bearer)])
    for router, limit in uploads:
        app.include_router(router, max_body_size=limit, dependencies=[Depends(bearer)])
    return app
