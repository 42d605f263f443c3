"""`graft worker`: becomes a worker process. The worker's code is never imported here, so torch is not either."""

import os
import sys
from typing import Annotated

import typer

from app.cli.errors import CliError
from app.cli.worker_environment import worker_environment
from app.core.settings import get_settings


def worker_command(base_model: str | None, device: str | None) -> list[str]:
    """Return the command line of a worker process."""
    command = [sys.executable, "-m", "workers.main"]
    command += ["--base-model", base_model] if base_model else []
    return command + (["--device", device] if device else [])


def worker(
    base_model: Annotated[str | None, typer.Option(help="Id of a base model of graft.toml; default the first.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N; default as configured.")] = None,
) -> None:
    """Run one worker in the foreground: one base model on one device."""
    settings = get_settings()
    settings.resolved_database_url()
    settings.resolved_redis_url()
    known = [source.id for source in settings.base_models()]
    if base_model and base_model not in known:
        raise CliError(f"unknown base model '{base_model}': choose one of {', '.join(known)}, or add it to graft.toml")
    command = worker_command(base_model, device)
    os.execve(command[0], command, worker_environment(os.environ))  # noqa: S606 - our own interpreter and module, no shell
