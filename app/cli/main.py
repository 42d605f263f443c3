"""Entry point of the `graft` command: puts the nouns together and ends every expected error in one line.

Exit codes: 0 done, 1 the command failed, 2 it was typed wrongly.
"""

import sys

import typer

from app.cli import api, demo, keys, migrate, models, serve, tenants, worker
from app.cli.errors import explain

cli = typer.Typer(
    name="graft",
    help="Training as a service: LoRA fine-tunes, versioned per tenant and served at once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
cli.command("serve")(serve.serve)
cli.command("api")(api.api)
cli.command("worker")(worker.worker)
cli.command("migrate")(migrate.migrate)
cli.command("demo")(demo.demo)
cli.add_typer(tenants.cli, name="tenants")
cli.add_typer(keys.cli, name="keys")
cli.add_typer(models.cli, name="models")


def main() -> None:
    """Run one command and exit."""
    try:
        cli()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        line = explain(error)
        if line is None:
            raise
        typer.echo(f"graft: {line}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
