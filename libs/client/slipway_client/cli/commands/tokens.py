"""`slipway token` commands."""

import contextlib
import sys
from collections.abc import Iterator
from datetime import timedelta
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
    source: Annotated[
        list[str] | None,
        typer.Option("--source", metavar="SOURCE", help="Source of demand [default: any]; repeatable, * at the end"),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", dir_okay=False, help="Tokens file of the services, to append to"),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option("--expires-in-days", min=0.001, metavar="DAYS", help="Days until it expires [default: never]"),
    ] = None,
) -> None:
    """Create a token and print its secret

    The secret is printed once; the tokens file, which is replaced at once, holds only its hash.

    Scopes: read (all but settings), read:settings (settings, too), declaration:write (which includes both),
    demand:write:POOL, signal:write:KIND:ID, pools:write, launch-configs:write, workers:terminate, workers:state,
    accounts:write (these, and declaration:write, also for what one owner has declared, as in
    declaration:write:team-a, which includes no read),
    state-keys:write, leases:write:POOL, throttles:write:POOL (its throttle reports are the provider's
    own), lease-pools:write, launching:stop, alerts:write, restores:write, dead-letters:write, positions:write,
    admin; a trailing * matches the rest.

    \b
    Examples:
      slipway token create --name dashboard --scope read --file tokens.yaml
      slipway token create --name ci --scope demand:write:linux --file tokens.yaml
      export SLIPWAY_TOKEN=$(slipway token create --name me --scope admin --file tokens.yaml)
    """
    from slipway_client.cli import tokens
    from slipway_common.base.clock import utc_now

    expires_at = utc_now() + timedelta(days=days) if days is not None else None
    with _editing(file, "create"):
        secret, line = tokens.create(
            name, scope, file, tenants=tenant or (), sources=source or (), expires_at=expires_at
        )
    print(secret)
    if file is None:
        print(f"add this line to the tokens file: {line}", file=sys.stderr)


@app.command("revoke")
def revoke_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token")],
    file: Annotated[
        Path, typer.Option("--file", metavar="FILE", dir_okay=False, help="Tokens file of the services, to cut it from")
    ],
) -> None:
    """Revoke a token: remove it from the tokens file

    Services refuse it from the first request after the file has reached them.

    \b
    Examples:
      slipway token revoke ci --file tokens.yaml
    """
    from slipway_client.cli import tokens

    with _editing(file, "revoke"):
        tokens.revoke(name, file)
    print(f"token {name} revoked in {file}")


@app.command("check")
def check_tokens(
    file: Annotated[
        Path, typer.Option("--file", metavar="FILE", dir_okay=False, help="Tokens file of the services, to check")
    ],
) -> None:
    """List the entries of the tokens file that services refuse

    \b
    Examples:
      slipway token check --file tokens.yaml
    """
    from slipway_common.web.tokens import Tokens

    tokens = Tokens(file)
    good = tokens.load()
    if tokens.refused:
        raise Failed("; ".join(tokens.refused))
    print(f"{len(good)} tokens are used as they are")


@contextlib.contextmanager
def _editing(file: Path | None, verb: str) -> Iterator[None]:
    """Raise the errors of an edit as those of the command."""
    from slipway_common.declaration.strict_yaml import Invalid

    try:
        yield
    except Invalid as error:
        raise InvalidFile(file or Path(f"slipway token {verb}"), error.problems) from error
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"cannot use the tokens file: {error}") from error
