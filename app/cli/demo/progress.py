"""A live progress bar for one training job, fed from the job and its events over REST."""

import time

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from app.cli.demo import client as rest
from app.cli.errors import CliError

POLL_SECONDS = 0.5
FIGURES = "loss {loss:.3f}  {tokens_per_second:.0f} tok/s  grad norm {grad_norm:.2f}  {eta_seconds:.0f} s left"
SKIPPED = "a step was skipped: its loss or gradient was not finite"


def follow(console: Console, client: httpx.Client, job_id: str) -> dict[str, object]:
    """Show the job's progress until it ends; return the job. Raises CliError unless it succeeded."""
    columns = [TextColumn("  training"), BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[figures]}")]
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=None, figures="waiting for the worker")
        while True:
            job = rest.job(client, job_id)
            metrics = rest.newest_metrics(client, job_id)
            if metrics:
                figures = SKIPPED if metrics["skipped"] else FIGURES.format(**metrics)
                progress.update(task, completed=metrics["step"], total=metrics["total_steps"], figures=figures)
            if job["status"] in rest.FINISHED:
                break
            time.sleep(POLL_SECONDS)
    if job["status"] != "succeeded":
        raise CliError(f"the job {job['status']}: {job.get('error')}")
    return job
