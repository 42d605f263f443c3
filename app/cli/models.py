"""`graft models`: the base models that workers have registered, and fresh ones written to a directory.

Fresh weights are made by the workers' side, in a process of its own: this one imports no torch.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.deployment import open_database
from app.cli.errors import CliError
from app.db.repositories import base_models, workers

ALIVE_SECONDS = 30.0
cli = typer.Typer(help="Show base models, and make new ones.", no_args_is_help=True)


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


@cli.command("init")
def init_model(
    out: Annotated[Path, typer.Option(help="Directory to write, in Hugging Face's layout; must be new or empty.")],
    preset: Annotated[str, typer.Option(help="nano, small, medium or large.")] = "nano",
    schedule: Annotated[
        str, typer.Option(help="jamba, zamba, or a comma list of mamba1, mamba2 and attention.")
    ] = "jamba",
    tokenizer: Annotated[
        str,
        typer.Option(help="A tokenizer.json, a directory that holds one (or vocab.json and merges.txt), or 'bytes'."),
    ] = "bytes",
    seed: Annotated[int, typer.Option(help="The same seed gives the same weights.")] = 0,
) -> None:
    """Write a fresh, untrained base model."""
    command = [sys.executable, "-m", "workers.loading.new_model", "--preset", preset, "--schedule", schedule]
    command += ["--tokenizer", tokenizer, "--out", str(out), "--seed", str(seed)]
    finished = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - our own module
    if finished.returncode:
        raise CliError(finished.stderr.strip())
    typer.echo(f"Wrote {finished.stdout.strip()}. Serve it with this in graft.toml:")
    typer.echo(f'[[base_models]]\nid = "{out.name}"\nsource = "hf:{out}"')
