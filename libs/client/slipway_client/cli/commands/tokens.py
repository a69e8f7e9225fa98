"""`slipway token` commands."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from slipway_client.cli.invalid_file import InvalidFile
from slipway_client.cli.options import noun
from slipway_client.transport.http import Failed

app = noun("Manage access tokens")


@app.command("create")
def create_token(
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Name of the token, shown in audit logs and errors")
    ],
    scope: Annotated[list[str], typer.Option("--scope", metavar="SCOPE", help="Scope of the token; repeatable")],
    tenant: Annotated[
        list[str] | None,
        typer.Option("--tenant", metavar="TENANT", help="Tenant of leases beside NAME; repeatable, * at the end"),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", dir_okay=False, help="Tokens file of the services, to append to"),
    ] = None,
) -> None:
    """Create a token and print its secret

    The secret is printed once; the tokens file holds only its hash.

    Scopes: read (all but settings), read:settings (settings, too), declaration:write (which includes both),
    demand:write:POOL, signal:write:KIND:ID, pools:write, launch-configs:write, workers:terminate, workers:state,
    state-keys:write, accounts:write, leases:write:POOL, throttles:write:POOL (its throttle reports are the provider's
    own), lease-pools:write, launching:stop, restores:write, dead-letters:write, positions:write, admin; a trailing *
    matches the rest.

    \b
    Examples:
      slipway token create --name dashboard --scope read --file tokens.yaml
      slipway token create --name ci --scope demand:write:linux --file tokens.yaml
      export SLIPWAY_TOKEN=$(slipway token create --name me --scope admin --file tokens.yaml)
    """
    from slipway_client.cli import tokens
    from slipway_common.declaration.strict_yaml import Invalid

    try:
        secret, line = tokens.create(name, scope, file, tenants=tenant or ())
    except Invalid as error:
        raise InvalidFile(file or Path("slipway token create"), error.problems) from error
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"cannot use the tokens file: {error}") from error
    print(secret)
    if file is None:
        print(f"add this line to the tokens file: {line}", file=sys.stderr)
