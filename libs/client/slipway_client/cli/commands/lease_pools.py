"""`slipway lease` commands for operators: state and terms of lease pools."""

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
import typer

from slipway_api.http.lease_broker import LeaseDecision
from slipway_api.http.lease_pools import ChangedLeasePool, LeasePool, LeasePoolReport, ReportedUnits
from slipway_client.cli.confirming import Confirm, command_line, confirmable
from slipway_client.cli.options import AsOutput, Reason, ago, api_of, clock, duration_seconds, lease_pools, seconds_of
from slipway_client.cli.tables import Field, Output, details, pairs, result, show, table
from slipway_client.transport.http import path
from slipway_client.view import moments
from slipway_client.view.phrases import limit_in_force, waits
from slipway_common.base.sanitize import printable

app = typer.Typer(rich_markup_mode=None)

UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

LeasePoolId = Annotated[str, typer.Argument(metavar="POOL", help="ID of the lease pool", autocompletion=lease_pools)]


def _reason(row: LeasePool) -> str:
    """Reason why requests wait; empty while none does: the newest grant says nothing of the pool's state."""
    return (row.reason or "").rpartition("\n")[2] if row.waiting else ""


def _limit(row: LeasePool) -> str:
    """The limit in force, with the word for what sets it."""
    cause = (row.limit_reason or "").partition(":")[0]
    return f"{limit_in_force(row)} {'' if cause == 'as declared' else cause}".rstrip()


POOLS: Final[tuple[Field[LeasePool], ...]] = (
    "id",
    ("mode", lambda row: row.mode if row.drained_reason is None else "drained"),
    ("limit", _limit),
    ("declared", lambda row: row.limit),
    "held",
    "waiting",
    ("wait", lambda row: waits(row.oldest_wait_seconds)),
    ("starts/min", lambda row: row.granted_per_minute),
    ("ETA", lambda row: None if row.eta_seconds is None else moments.about(row.eta_seconds)),
    ("reason", _reason),
)


@app.command("pools")
def list_lease_pools(context: typer.Context, output: AsOutput = Output.TABLE) -> None:
    """List lease pools with their limits and queues

    Columns: the limit in force, which is derived, adaptive, pinned or as declared; the declared limit; units held and
    waiting; age of the oldest request; and ETA, the expected wait of a new request.

    \b
    Example:
      slipway lease pools
    """
    show(api_of(context).rows(LeasePool, "lease-broker", "/lease-pools"), POOLS, output, nothing="no lease pools")


@app.command("report")
def report(
    context: typer.Context,
    pool: LeasePoolId,
    since: Annotated[str, typer.Option(metavar="DURATION", help="Period of the report")] = "1d",
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Limit to compare with [default: current]")
    ] = None,
    hold: Annotated[
        str | None, typer.Option("--hold", metavar="DURATION", help="Hold to assume [default: current]")
    ] = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Report concurrency and throttles of a lease pool

    Concurrency, throttles and phase durations, compared with the limit and the hold, to choose both.

    \b
    Examples:
      slipway lease report aws-ci
      slipway lease report aws-ci --since 7d --limit 40 --hold 15m
    """
    read = api_of(context).read(
        LeasePoolReport,
        "lease-broker",
        path("lease-pools", pool, "report"),
        since_seconds=duration_seconds("--since", since),
        limit=limit,
        hold_seconds=duration_seconds("--hold", hold),
    )
    row = read.value
    tables: dict[str, Sequence[msgspec.Struct]] = {"bands": row.bands, "spreads": row.spreads, "what_if": row.what_if}
    if not details(read, output, [*tables]):
        return
    for name, rows in tables.items():
        print(f"\n{printable(name.replace('_', ' '))}:")
        if len(rows) == 1:  # a table of one row with many columns is wider than a terminal
            pairs(msgspec.structs.asdict(rows[0]))
        else:
            table(rows, rows[0].__struct_fields__ if rows else (), nothing="none")


@app.command("set")
def set_terms(
    context: typer.Context,
    pool: LeasePoolId,
    reason: Reason,
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="Units held at the same time")] = None,
    hold: Annotated[
        str | None, typer.Option("--hold", metavar="DURATION", help="Maximum duration of a lease, such as 20m")
    ] = None,
    ttl: Annotated[str | None, typer.Option(metavar="DURATION", help="Expiry of a lease that is not renewed")] = None,
    pacing: Annotated[
        str | None,
        typer.Option(metavar="INTERVAL[/BURST]", help="Pacing of grants, such as 12s or 12s/3; default; off"),
    ] = None,
    operation: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Operation that is paced [default: all without own pacing]"),
    ] = None,
    mode: Annotated[
        Literal["shadow", "advisory", "enforce"] | None,
        typer.Option(help="Admission mode; only enforce makes requests wait"),
    ] = None,
    revision: Annotated[
        int | None, typer.Option(metavar="N", help="Expected revision of the pool [default: any]")
    ] = None,
    confirm: Confirm = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Change the terms of a lease pool

    The change is in force until the next declaration. Held leases stay held; below a lowered limit, nothing is granted
    until usage falls. A limit that is more than doubled needs a confirmation.

    \b
    Examples:
      slipway lease set aws-ci --limit 40 --reason "throttled since noon"
      slipway lease set aws-ci --mode enforce --pacing 12s/3 --reason "the report looks good"
      slipway lease set aws-ci --pacing 1s --operation launch --reason "quota of calls was halved"
    """
    body: dict[str, object] = {
        "limit": limit,
        "hold_seconds": duration_seconds("--hold", hold),
        "ttl_seconds": duration_seconds("--ttl", ttl),
        "mode": mode,
        "operation": operation,
    }
    if pacing is not None:
        body["pacing"] = _pacing(pacing)
    elif operation is not None:
        raise typer.BadParameter("--operation names what --pacing changes: give both")
    elif not any(value is not None for value in body.values()):
        raise typer.BadParameter("nothing to change: set --limit, --hold, --ttl, --pacing or --mode")
    with confirmable(command_line(context)):
        _change(context, pool, body | {"revision": revision, "confirm": confirm}, reason, output)


def _pacing(text: str) -> dict[str, float] | str | None:
    if text in {"off", "default"}:
        return None if text == "default" else "off"
    interval, _, burst = text.partition("/")
    if burst and not burst.isdecimal():
        raise typer.BadParameter(f"--pacing: {burst!r} is not a number of starts")
    return {"interval_seconds": seconds_of("--pacing", interval), "burst": int(burst or 1)}


@app.command("units")
def report_units(
    context: typer.Context,
    pool: LeasePoolId,
    units: Annotated[int, typer.Argument(metavar="N", min=0, help="Units that exist now, such as live conductors")],
    ttl: Annotated[str, typer.Option("--ttl", metavar="DURATION", help="Time until the report is stale")] = "5m",
) -> None:
    """Report the units that a derived limit follows

    Report them again before they are stale: afterwards the limit keeps its last value, with an alert.

    \b
    Example:
      slipway lease units metal-ci 3 --ttl 10m
    """
    body = {"units": units, "ttl_seconds": duration_seconds("--ttl", ttl)}
    answer = api_of(context).put(ReportedUnits, "lease-broker", path("lease-pools", pool, "units"), body)
    until = clock(answer.valid_until)
    print(f"lease pool {pool}: {units} {'unit' if units == 1 else 'units'} reported, valid until {until}")


@app.command("pin")
def pin(context: typer.Context, pool: LeasePoolId, reason: Reason, output: AsOutput = Output.TABLE) -> None:
    """Pin the limit of a lease pool to its declared value

    A pinned limit is not lowered or raised automatically.

    \b
    Example:
      slipway lease pin aws-ci --reason "ratchet of this month"
    """
    _change(context, pool, {"pinned": True}, reason, output, done="pinned")


@app.command("unpin")
def unpin(context: typer.Context, pool: LeasePoolId, reason: Reason, output: AsOutput = Output.TABLE) -> None:
    """Unpin the limit of a lease pool

    \b
    Example:
      slipway lease unpin aws-ci --reason "new quota"
    """
    _change(context, pool, {"pinned": False}, reason, output, done="unpinned")


@app.command("drain")
def drain(context: typer.Context, pool: LeasePoolId, reason: Reason) -> None:
    """Drain a lease pool: grant no more leases

    Held leases stay held until they are released.

    \b
    Example:
      slipway lease drain aws-ci --reason "account is being replaced"
    """
    api_of(context).post(object, "lease-broker", path("lease-pools", pool, "drain"), {"reason": reason})
    print(f"lease pool {pool} drained; `slipway lease ls --pool {pool}` lists the leases still held")


@app.command("undrain")
def undrain(context: typer.Context, pool: LeasePoolId, reason: Reason) -> None:
    """Resume granting leases in a drained lease pool

    \b
    Example:
      slipway lease undrain aws-ci --reason "replaced"
    """
    api_of(context).post(object, "lease-broker", path("lease-pools", pool, "undrain"), {"reason": reason})
    print(f"lease pool {pool} resumed")


HISTORY: Final[tuple[Field[LeaseDecision], ...]] = (
    ("at", lambda row: clock(row.at)),
    ("what", lambda row: row.kind),
    ("lease", lambda row: row.lease_id),
    ("request", lambda row: row.request_id),
    "units",
    ("by", lambda row: row.by),
    "reason",
)


@app.command("history")
def history(
    context: typer.Context,
    subject: Annotated[
        str, typer.Argument(metavar="POOL|LEASE_ID", help="Lease pool or lease", autocompletion=lease_pools)
    ],
    since: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Age of the oldest entry; pools only [default: any]")
    ] = None,
    limit: Annotated[
        int, typer.Option("-n", "--limit", metavar="N", min=1, help="Maximum number of entries; pools only")
    ] = 50,
    output: AsOutput = Output.TABLE,
) -> None:
    """Show the decisions about a lease pool or a lease

    \b
    Examples:
      slipway lease history aws-ci --since 1h
      slipway lease history "$SLIPWAY_LEASE_ID"
    """
    api = api_of(context)
    if UUID.fullmatch(lease_id := subject.partition(":")[0]):
        rows, at_most = api.rows(LeaseDecision, "lease-broker", path("leases", lease_id, "history")), None
    else:
        at = ago("--since", since)
        rows = api.rows(
            LeaseDecision, "lease-broker", path("lease-pools", subject, "history"), limit=limit + 1, since=at
        )
        at_most = limit
    show(rows, HISTORY, output, nothing="no decisions yet", drop=("request", "by", "units"), limit=at_most)


def _change(
    context: typer.Context, pool: str, body: dict[str, object], reason: str, output: Output, *, done: str = "changed"
) -> None:
    body = {name: value for name, value in body.items() if value is not None or name == "pacing"}
    place, wanted = path("lease-pools", pool), body | {"reason": reason}
    answer = api_of(context).read(ChangedLeasePool, "lease-broker", place, method="PATCH", body=wanted)
    result(answer, f"lease pool {pool} {done}, revision {answer.value.revision}", output)
