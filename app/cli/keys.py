"""`graft keys`: create, list and revoke a tenant's API keys. A key's text is shown once, when it is made."""

import json
from typing import Annotated

import typer
from sqlalchemy.orm import Session

from app.cli.deployment import open_database
from app.cli.errors import CliError
from app.db.repositories import api_keys, tenants
from app.db.tables import Tenant

cli = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)
TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="A tenant's name.")]


def _tenant(session: Session, name: str) -> Tenant:
    tenant = tenants.get_by_name(session, name)
    if tenant is None:
        raise CliError(f"no tenant '{name}': see 'graft tenants list'")
    return tenant


@cli.command("create")
def create(
    tenant: TenantName,
    name: Annotated[str, typer.Option(help="What the key is for.")] = "default",
    admin: Annotated[bool, typer.Option("--admin", help="Let it see the deployment's workers too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make a key and print it, once."""
    with open_database() as database, database.write() as session:
        key, plaintext = api_keys.create(session, _tenant(session, tenant).id, name, admin=admin)
        made = {"id": key.id, "name": name, "admin": admin, "api_key": plaintext}
    if as_json:
        typer.echo(json.dumps(made))
        return
    typer.echo(f"Key      {made['id']} ({name}{', admin' if admin else ''})")
    typer.echo(f"API key  {plaintext}")
    typer.echo("The key is shown this once; only its hash is stored.")


@cli.command("list")
def list_keys(
    tenant: TenantName,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """List a tenant's keys by their first characters."""
    with open_database() as database, database.read() as session:
        rows = [
            {
                "id": key.id,
                "name": key.name,
                "hint": key.hint,
                "admin": key.admin,
                "revoked": key.revoked_at is not None,
            }
            for key in api_keys.list(session, _tenant(session, tenant).id)
        ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        typer.echo(f"{row['id']}  {row['hint']}…  {row['name']}{_marks(row)}")


def _marks(row: dict[str, object]) -> str:
    return "".join(f"  ({mark})" for mark in ("admin", "revoked") if row[mark])


@cli.command("revoke")
def revoke(
    tenant: TenantName,
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The id that 'graft keys list' shows.")],
) -> None:
    """Revoke a key at once and for good."""
    with open_database() as database, database.write() as session:
        if not api_keys.revoke(session, _tenant(session, tenant).id, key_id):
            raise CliError(f"tenant '{tenant}' has no key '{key_id}': see 'graft keys list {tenant}'")
    typer.echo(f"Revoked {key_id}.")
