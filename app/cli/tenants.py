"""`graft tenants`: create and list the owners of keys, files, jobs and adapters."""

import json
import re
from typing import Annotated

import typer

from app.cli.deployment import open_database
from app.cli.errors import CliError
from app.db.repositories import api_keys, tenants

# A tenant's name is part of model names, whose parts are separated by colons.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
cli = typer.Typer(help="Create and list tenants.", no_args_is_help=True)


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
        rows = [{"id": t.id, "name": t.name, "created_at": int(t.created_at)} for t in tenants.list(session)]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        typer.echo(f"{row['id']}  {row['name']}")
    if not rows:
        typer.echo("No tenants yet: make one with 'graft tenants create NAME'.")
