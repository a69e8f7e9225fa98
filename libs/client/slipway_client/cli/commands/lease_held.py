"""`slipway lease` commands on held leases: renew, confirm, release, cancel, status and ls."""

import os
from collections.abc import Iterator
from typing import Annotated, Final, Literal, TypeVar

import typer

from slipway_api.http.lease_broker import ConfirmLease, Lease, ReleasedLease, ReleaseLease, RenewLease
from slipway_client.cli.options import AsOutput, Limit, OfLeasePool, Pool, api_of, clock, duration_or_zero, handle_of
from slipway_client.cli.tables import Field, Output, details, first, result, show
from slipway_client.leases.environment import switched_off
from slipway_client.transport.http import Decoded, path

app = typer.Typer(rich_markup_mode=None)
T = TypeVar("T")


Held = Annotated[
    str | None,
    typer.Argument(
        metavar="[LEASE_ID:TOKEN]", help="Lease [default: SLIPWAY_LEASE_ID, SLIPWAY_FENCING_TOKEN]", show_default=False
    ),
]


@app.command("renew")
@app.command("heartbeat", hidden=True)
def renew(
    context: typer.Context,
    lease: Held = None,
    progress: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Progress marker; required by pools with a progress limit")
    ] = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Renew a lease and print its remaining TTL in seconds

    \b
    Examples:
      slipway lease renew "$held"
      slipway lease heartbeat "$held"           the same

    Exit codes: 76 lease lost; 69, 77, 78 as for all lease commands.
    """
    for id_, token in _held(lease):
        body = RenewLease(fencing_token=token, progress=progress)
        answer = _posted(context, Lease, id_, "renew", body)
        result(answer, f"{answer.value.ttl_seconds_left:.0f}", output)


@app.command("confirm")
def confirm(context: typer.Context, lease: Held = None, output: AsOutput = Output.TABLE) -> None:
    """Confirm a reserved lease and print its TTL in seconds

    \b
    Example:
      slipway lease confirm "$held"
    """
    for id_, token in _held(lease):
        answer = _posted(context, Lease, id_, "confirm", ConfirmLease(fencing_token=token))
        result(answer, f"{answer.value.ttl_seconds_left:.0f}", output)


@app.command("release")
def release(
    context: typer.Context,
    lease: Held = None,
    remaining: Annotated[int | None, typer.Option(metavar="N", min=0, help="Units to keep [default: none]")] = None,
    ending: Annotated[
        str, typer.Option("--result", metavar="RESULT", help="Result; `failed` slows down the tenant")
    ] = "done",
    throttled: Annotated[bool, typer.Option("--throttled", help="Throttled by the account")] = False,
    retry_after: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Retry-After of the account; implies --throttled")
    ] = None,
    quota_remaining: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Remaining quota reported by the account")
    ] = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Release a lease and print the number of released units

    Idempotent: a second release prints 0.

    \b
    Examples:
      slipway lease release "$held"
      slipway lease release --result failed --throttled --retry-after 2m
    """
    retry_after_seconds = duration_or_zero("--retry-after", retry_after)
    for id_, token in _held(lease):
        body = ReleaseLease(
            fencing_token=token,
            remaining=remaining,
            result=ending,
            throttled=throttled or retry_after is not None,
            retry_after_seconds=retry_after_seconds,
            quota_remaining=quota_remaining,
        )
        answer = _posted(context, ReleasedLease, id_, "release", body)
        result(answer, str(answer.value.released_units), output)


@app.command("cancel")
def cancel(
    context: typer.Context,
    pool: Pool,
    request: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="ID of the request")],
) -> None:
    """Cancel a lease request

    A lease that was already granted to it is released.

    \b
    Example:
      slipway lease cancel --pool aws-ci "$HOST_UID"
    """
    if not (pool and request):
        raise typer.BadParameter("--pool or REQUEST_ID is empty: is a variable not set?")
    api_of(context).delete(object, "lease-broker", path("lease-pools", pool, "requests", request))


@app.command("status")
def status(
    context: typer.Context,
    lease: Annotated[
        str | None, typer.Argument(metavar="[LEASE_ID]", help="Lease [default: SLIPWAY_LEASE_ID]", show_default=False)
    ] = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Show a lease

    \b
    Example:
      slipway lease status "$SLIPWAY_LEASE_ID"
    """
    if not (id_ := lease.partition(":")[0] if lease else os.environ.get("SLIPWAY_LEASE_ID", "")):
        raise typer.BadParameter("no lease: pass LEASE_ID or set SLIPWAY_LEASE_ID")
    details(api_of(context).read(Lease, "lease-broker", path("leases", id_)), output, ["id"])  # as lease_id


LEASES: Final[tuple[Field[Lease], ...]] = (
    ("id", lambda row: row.lease_id),
    ("pool", lambda row: row.lease_pool_id),
    "tenant",
    "holder",
    "operation",
    "state",
    "units",
    ("token", lambda row: row.fencing_token),
    ("granted", lambda row: clock(row.granted_at)),
    ("expires", lambda row: clock(row.expires_at)),
    ("hold until", lambda row: clock(row.hold_until)),
)


@app.command("ls")
def list_leases(
    context: typer.Context,
    pool: OfLeasePool = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Tenant [default: all]")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Leases of all holders in all pools")] = False,
    limit: Limit = 100,
    output: Annotated[
        Literal["table", "json", "name"],
        typer.Option("-o", "--output", help="Output format; name is one lease ID per line"),
    ] = "table",
) -> None:
    """List leases, by default those of your own token

    Only leases that count against a limit. With --pool, --tenant or --all those of all holders, also Slipway's own
    launches.

    \b
    Examples:
      slipway lease ls -o name
      slipway lease ls --pool sim-a
    """
    mine = not (everybody or pool or tenant) or None
    rows = api_of(context).rows(Lease, "lease-broker", "/leases", limit=limit + 1, pool=pool, tenant=tenant, mine=mine)
    if output == "name":
        for row in first(rows, limit):
            print(row.value.lease_id)
    else:
        drop = ("holder", "granted", "operation", "token", "hold until", "tenant", "units")
        show(rows, LEASES, Output(output), nothing="no leases", drop=drop, limit=limit)


def _posted(context: typer.Context, type_: type[T], lease_id: str, verb: str, body: object) -> Decoded[T]:
    return api_of(context).read(type_, "lease-broker", path("leases", lease_id, verb), "POST", body)


def _held(given: str | None) -> "Iterator[tuple[str, int]]":
    """Yield ID and fencing token of the command's lease; nothing if leases are switched off."""
    if switched_off(os.environ):
        return
    environment = os.environ
    text = given or f"{environment.get('SLIPWAY_LEASE_ID', '')}:{environment.get('SLIPWAY_FENCING_TOKEN', '')}"
    if text == ":":
        raise typer.BadParameter("no lease: pass LEASE_ID:TOKEN or set SLIPWAY_LEASE_ID and SLIPWAY_FENCING_TOKEN")
    handle = handle_of(text)
    yield handle.lease_id, handle.fencing_token
