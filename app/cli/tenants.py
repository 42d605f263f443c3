"""`graft tenants`: create and list the owners of keys, files, jobs and adapters, and set their limits."""

import json
import re
from typing import Annotated, Any

import typer

from app.cli.deployment import open_database
from app.cli.errors import CliError
from app.db.repositories import api_keys, tenants

# A tenant's name is part of model names, whose parts are separated by colons.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LIMITS = ("weight", "max_running_jobs", "max_queued_jobs", "tokens_per_day")
cli = typer.Typer(help="Create and list tenants, set their limits.", no_args_is_help=True)


@cli.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Letters, digits, dot, dash, underscore; at most 64.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Create a tenant and print its first API key, once."""
    if not NAME.fullmatch(name):
        raise CliError(f"'{name}' cannot name a tenant: use 1 to 64 letters, digits, '.', '-' or '_'")
    with open_database() as database:
        try:
            with database.write() as session:
                tenant = tenants.create(session, name)
                key, plaintext = api_keys.create(session, tenant.id, "first")
                made = {"id": tenant.id, "name": name, "api_key_id": key.id, "api_key": plaintext}
        except tenants.TenantNameTakenError as error:
            raise CliError(f"a tenant '{name}' exists already: make a key with 'graft keys create {name}'") from error
    if as_json:
        typer.echo(json.dumps(made))
        return
    typer.echo(f"Tenant   {made['name']} ({made['id']})")
    typer.echo(f"API key  {made['api_key']}")
    typer.echo("The key is shown this once; only its hash is stored.")


@cli.command("list")
def list_tenants(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False) -> None:
    """List all tenants."""
    with open_database() as database, database.read() as session:
        rows: list[dict[str, Any]] = [
            {"id": t.id, "name": t.name, "created_at": int(t.created_at)} | {name: getattr(t, name) for name in LIMITS}
            for t in tenants.list(session)
        ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        limits = [f"{name.replace('_', '-')} {row[name]}" for name in LIMITS if row[name] is not None]
        typer.echo("  ".join([row["id"], row["name"], *limits]))
    if not rows:
        typer.echo("No tenants yet: make one with 'graft tenants create NAME'.")


def _limit(text: str) -> str:
    """Return a limit as typed, if it is one: a whole number, or `none`."""
    if text != "none" and not re.fullmatch(r"[0-9]{1,15}", text):
        raise typer.BadParameter(f"expected a whole number, or 'none' to lift the limit, got '{text}'")
    return text


Limit = Annotated[str | None, typer.Option(parser=_limit, metavar="N|none")]


@cli.command("set")
def set_limits(
    name: Annotated[str, typer.Argument(help="A tenant's name.")],
    weight: Annotated[float | None, typer.Option(min=0.001, max=1000, help="Its share relative to others.")] = None,
    max_running_jobs: Limit = None,
    max_queued_jobs: Limit = None,
    tokens_per_day: Limit = None,
) -> None:
    """Set a tenant's share of the workers and its limits; those not named stay as they are."""
    typed = {"max_running_jobs": max_running_jobs, "max_queued_jobs": max_queued_jobs, "tokens_per_day": tokens_per_day}
    changes: dict[str, float | None] = {k: None if v == "none" else int(v) for k, v in typed.items() if v is not None}
    if weight is not None:
        changes["weight"] = weight
    if not changes:
        raise CliError("nothing to set: see 'graft tenants set --help'")
    with open_database() as database, database.write() as session:
        tenant = tenants.get_by_name(session, name)
        if tenant is None:
            raise CliError(f"no tenant '{name}': see 'graft tenants list'")
        tenants.set_limits(session, tenant.id, **changes)
    typer.echo(f"Set {', '.join(changes)} of {name}.")
