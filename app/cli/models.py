"""`graft models`: the base models that workers have registered."""

import json
from typing import Annotated

import typer

from app.cli.deployment import open_database
from app.db.repositories import base_models, workers

ALIVE_SECONDS = 30.0
cli = typer.Typer(help="Show base models.", no_args_is_help=True)


@cli.command("list")
def list_models(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False) -> None:
    """List base models and how many living workers host each."""
    with open_database() as database, database.read() as session:
        hosts = [row.base_model for row in workers.alive(session, ALIVE_SECONDS)]
        rows = [
            {
                "id": info.id,
                "architecture": info.architecture,
                "parameters": info.parameters,
                "context_length": info.context_length,
                "dtype": info.dtype,
                "quantization": info.quantization,
                "bytes": info.bytes,
                "workers": hosts.count(info.id),
            }
            for info in map(base_models.info_of, base_models.list(session))
        ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        typer.echo(
            f"{row['id']}  {row['architecture']}  {row['parameters']:,} parameters  "
            f"{row['bytes']:,} bytes  {row['dtype']}  quantization {row['quantization']}  "
            f"context {row['context_length']}  workers {row['workers']}"
        )
    if not rows:
        typer.echo("No base models yet: a worker registers its own when it starts ('graft worker').")
