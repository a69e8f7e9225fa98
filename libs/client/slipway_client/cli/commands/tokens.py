"""`slipway token` commands."""

import contextlib
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec.structs import asdict, replace

from slipway_api.http.service import ListedToken
from slipway_client.cli.invalid_file import InvalidFile
from slipway_client.cli.options import AsOutput, api_of, clock, noun
from slipway_client.cli.tables import Field, Output, as_json, table
from slipway_client.transport.failed import SERVICES, Failed
from slipway_client.transport.http import path

app = noun("Manage access tokens")


class KnownToken(ListedToken, frozen=True, kw_only=True):
    """A token with the services whose files have it: its last use in any of them; revoked, if it is in all."""

    services: list[str]


FIELDS: Final[tuple[Field[KnownToken], ...]] = (
    "name",
    ("scopes", lambda token: " ".join(token.scopes)),
    ("last used", lambda token: clock(token.last_used_at)),
    ("expires", lambda token: clock(token.expires_at)),
    ("state", lambda token: "revoked" if token.revoked else ""),
)


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

    Scopes: read (all but settings), read:metrics (metrics alone), read:settings (settings, too), declaration:write
    (which includes both), demand:write:POOL, signal:write:KIND:ID, signal:write:owner:OWNER (on what one owner has
    declared), pools:write, launch-configs:write, workers:terminate, workers:state, accounts:write (these, and
    declaration:write, also for what one owner has declared, as in declaration:write:team-a, which includes no read),
    state-keys:write, leases:write:POOL, throttles:write:POOL (its throttle reports are the provider's own),
    lease-pools:write, launching:stop, alerts:write, tokens:write, restores:write, dead-letters:write,
    positions:write, admin; a trailing * matches the rest.

    \b
    Examples:
      slipway token create --name dashboard --scope read --file tokens.yaml
      slipway token create --name ci --scope demand:write:linux --file tokens.yaml
      export SLIPWAY_TOKEN=$(slipway token create --name me --scope admin --file tokens.yaml)
    """
    from slipway_client.cli import tokens
    from slipway_common.base.clock import utc_now

    expires_at = (utc_now() + timedelta(days=days)).isoformat(timespec="seconds") if days is not None else None
    with _editing(file, "create"):
        secret, line = tokens.create(name, scope, file, tenants=tenant, sources=source, expires_at=expires_at)
    print(secret)
    if file is None:
        print(f"add this line to the tokens file: {line}", file=sys.stderr)


@app.command("ls")
def list_tokens(context: typer.Context, output: AsOutput = Output.TABLE) -> None:
    """List the tokens of the services, with their last use

    Asks every service, and says which did not answer. The last use is that of the last 90 days, in any service.

    \b
    Examples:
      slipway token ls
      slipway token ls -o json
    """
    rows, errors = api_of(context).list_all(ListedToken, "/tokens")
    tokens: dict[str, KnownToken] = {}
    for row in rows:
        token = row.value
        known = tokens.get(token.name) or KnownToken(**asdict(token), services=[])
        tokens[token.name] = replace(
            known,
            services=[*known.services, row.service],
            last_used_at=max(filter(None, (known.last_used_at, token.last_used_at)), default=None),
            revoked=known.revoked and token.revoked,
        )
    if output is Output.JSON:
        as_json(list(tokens.values()))
    else:
        table(list(tokens.values()), FIELDS, nothing="no tokens")
    if errors:
        raise Failed(errors)


@app.command("revoke")
def revoke_token(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token")],
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", dir_okay=False, help="Tokens file of the services, to cut it from"),
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, for the audit")] = "revoked",
) -> None:
    """Revoke a token, in services or in the file

    Without --file each service records that it is revoked, and all replicas refuse it within 5 seconds; it stays so,
    whatever the file says. With --file services refuse it once the file has reached them.

    \b
    Examples:
      slipway token revoke ci --reason "the runner was stolen"
      slipway token revoke ci --file tokens.yaml
    """
    from slipway_client.cli import tokens

    if file is not None:
        with _editing(file, "revoke"):
            tokens.revoke(name, file)
        print(f"token {name} revoked in {file}")
        return
    failed = []
    for service in SERVICES:
        try:
            api_of(context).post(object, service, path("tokens", name, "revoke"), {"reason": reason})
        except Failed as error:
            failed.append(f"{service}: {error}")
        else:
            print(f"{service}: token {name} is revoked")
    if failed:
        raise Failed("\n".join([*failed, "Repeat this command: where it is revoked, that changes nothing."]))


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
        raise InvalidFile((file or Path(f"slipway token {verb}"), error)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"cannot use the tokens file: {error}") from error
