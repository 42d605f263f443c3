"""`graft api`: the HTTP service alone, for deployments whose database, Redis and workers run elsewhere."""

from typing import Annotated

import typer
import uvicorn

from app.core.settings import get_settings

GRACEFUL_STOP_SECONDS = 10


def api(
    host: Annotated[str | None, typer.Option(help="Address to listen on; default GRAFT_HOST.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on; default GRAFT_PORT.")] = None,
) -> None:
    """Serve HTTP in the foreground."""
    from app.main import create_app

    settings = get_settings()
    settings.resolved_database_url()
    settings.resolved_redis_url()
    uvicorn.run(
        create_app(settings),
        host=host or settings.host,
        port=port or settings.port,
        log_level="warning",
        timeout_graceful_shutdown=GRACEFUL_STOP_SECONDS,
    )
