"""`slipway lease`, for operators: how lease pools are, and what they are set to."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

import typer

from slipway_client import moments
from slipway_client.commands.pools import waits
from slipway_client.foreign import printable
from slipway_client.http import path
from slipway_client.options import AsOutput, Reason, lease_pools, now
from slipway_client.tables import Field, Output, as_json, pairs, short, show

app = typer.Typer(rich_markup_mode=None)

UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

LeasePoolId = Annotated[str, typer.Argument(metavar="POOL", help="Id of the lease pool.", autocompletion=lease_pools)]
Duration = Annotated[str | None, typer.Option(metavar="DURATION")]


def _seconds(option: str, text: str | None) -> float | None:
    try:
        return None if text is None else moments.seconds(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def _why(row: Mapping[str, Any]) -> str:
    return UUID.sub(lambda id_: short(id_[0]), (row.get("why") or "").rpartition("\n")[2])


def _limit(row: Mapping[str, Any]) -> Any:
    return row["limit"] if row.get("pinned_reason") is None else f"{row['limit']} pinned"


POOLS: Final[tuple[Field, ...]] = (
    "id",
    ("mode", lambda row: row.get("mode") if row.get("drained_reason") is None else "drained"),
    ("limit", _limit),
    "held",
    "waiting",
    ("wait", waits),
    ("starts/min", lambda row: row.get("granted_per_minute")),
    ("ETA", lambda row: None if row.get("eta_seconds") is None else moments.about(row["eta_seconds"])),
    ("why", _why),
)


@app.command("pools")
def list_lease_pools(context: typer.Context, output: AsOutput = Output.TABLE) -> None:
    """List lease pools: units held and waiting against the limit, and how long one asked for now would wait (ETA).
    A limit that is pinned says so, and the mode of a pool that is drained.

    \b
    Example:
      slipway lease pools
    """
    show(context.obj.get("lease-broker", "/lease-pools")["items"], POOLS, output, nothing="no lease pools")


@app.command("report")
def report(
    context: typer.Context,
    pool: LeasePoolId,
    since: Annotated[str, typer.Option(metavar="DURATION", help="Look back so far.")] = "1d",
    limit: Annotated[int | None, typer.Option(min=1, help="As if this was the limit.")] = None,
    hold: Annotated[str | None, typer.Option("--hold", metavar="DURATION", help="As if this was the hold.")] = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Show concurrency, throttles and how long phases took, against limit and hold: where to set them, and whether.

    \b
    Examples:
      slipway lease report aws-ci
      slipway lease report aws-ci --since 7d --limit 40 --hold 15m
    """
    row = context.obj.get(
        "lease-broker",
        path("lease-pools", pool, "report"),
        since_seconds=_seconds("--since", since),
        limit=limit,
        hold_seconds=_seconds("--hold", hold),
    )
    if output is Output.JSON:
        as_json(row)
        return
    tables = {name: value for name, value in row.items() if _is_rows(value)}
    pairs({name: value for name, value in row.items() if name not in tables}, now())
    for name, rows in tables.items():
        print(f"\n{printable(name.replace('_', ' '))}:")
        if len(rows) == 1:  # as a table, one with many figures is wider than a terminal
            pairs(rows[0], now())
        else:
            show(rows, tuple(rows[0]) if rows else (), output, nothing="none")


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


@app.command("set")
def set_terms(
    context: typer.Context,
    pool: LeasePoolId,
    reason: Reason,
    limit: Annotated[int | None, typer.Option(min=0, help="Units held at once; lowering it drains.")] = None,
    hold: Annotated[str | None, typer.Option("--hold", metavar="DURATION", help="What one lease covers.")] = None,
    ttl: Annotated[str | None, typer.Option(metavar="DURATION", help="How long a lease lives unrenewed.")] = None,
    pacing: Annotated[
        str | None,
        typer.Option(metavar="INTERVAL[/BURST]", help="Between two starts, such as 12s or 12s/3; or default, or off."),
    ] = None,
    mode: Annotated[
        Literal["shadow", "advisory", "enforce"] | None, typer.Option(help="Whether requests wait, or only would.")
    ] = None,
    revision: Annotated[int | None, typer.Option(help="Only if nobody has changed the pool since this one.")] = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Change a lease pool now, until it is declared otherwise. What is held stays held.

    \b
    Examples:
      slipway lease set aws-ci --limit 40 --reason "throttled since noon"
      slipway lease set aws-ci --mode enforce --pacing 12s/3 --reason "the report looks good"
    """
    changes = {
        "limit": limit,
        "hold_seconds": _seconds("--hold", hold),
        "ttl_seconds": _seconds("--ttl", ttl),
        "mode": mode,
    }
    body = {name: value for name, value in changes.items() if value is not None}
    if pacing is not None:
        body["pacing"] = _pacing(pacing)
    if not body:
        raise typer.BadParameter("nothing to set: give --limit, --hold, --ttl, --pacing or --mode")
    _change(context, pool, body | {"revision": revision}, reason, output)


def _pacing(text: str) -> Any:
    if text in {"off", "default"}:
        return None if text == "default" else "off"
    interval, _, burst = text.partition("/")
    if burst and not burst.isdecimal():
        raise typer.BadParameter(f"--pacing: {burst!r} is not a number of starts")
    return {"interval_seconds": _seconds("--pacing", interval), "burst": int(burst or 1)}


@app.command("pin")
def pin(context: typer.Context, pool: LeasePoolId, reason: Reason, output: AsOutput = Output.TABLE) -> None:
    """Let nothing move the limit but a person: as declared, whatever evidence says.

    \b
    Example:
      slipway lease pin aws-ci --reason "ratchet of this month"
    """
    _change(context, pool, {"pinned": True}, reason, output, done="pinned")


@app.command("unpin")
def unpin(context: typer.Context, pool: LeasePoolId, reason: Reason, output: AsOutput = Output.TABLE) -> None:
    """Let evidence move the limit again.

    \b
    Example:
      slipway lease unpin aws-ci --reason "new quota"
    """
    _change(context, pool, {"pinned": False}, reason, output, done="unpinned")


@app.command("drain")
def drain(context: typer.Context, pool: LeasePoolId, reason: Reason) -> None:
    """Grant nothing more in POOL; what is held stays held until it is given back.

    \b
    Example:
      slipway lease drain aws-ci --reason "account is being replaced"
    """
    context.obj.post("lease-broker", path("lease-pools", pool, "drain"), {"reason": reason})
    print(f"{pool} is drained; `slipway lease ls --pool {pool}` lists what is held")


@app.command("undrain")
def undrain(context: typer.Context, pool: LeasePoolId, reason: Reason) -> None:
    """Grant in a drained POOL again.

    \b
    Example:
      slipway lease undrain aws-ci --reason "replaced"
    """
    context.obj.post("lease-broker", path("lease-pools", pool, "undrain"), {"reason": reason})
    print(f"{pool} grants again")


HISTORY: Final[tuple[Field, ...]] = (
    ("at", lambda row: moments.clock(moments.at(row["at"]), now())),
    ("what", lambda row: row.get("kind")),
    ("lease", lambda row: short(row["lease_id"]) if row.get("lease_id") else None),
    ("request", lambda row: short(row["request_id"]) if row.get("request_id") else None),
    "units",
    ("by", lambda row: row.get("by")),
    "reason",
)


@app.command("history")
def history(
    context: typer.Context,
    subject: Annotated[str, typer.Argument(metavar="POOL|LEASE_ID", autocompletion=lease_pools)],
    since: Annotated[str | None, typer.Option(metavar="DURATION", help="Only so old; of a pool.")] = None,
    last: Annotated[int, typer.Option("-n", metavar="N", min=1, max=1000, help="The last N; of a pool.")] = 50,
    output: AsOutput = Output.TABLE,
) -> None:
    """Show what was decided about a lease pool, or about one lease, and why.

    \b
    Examples:
      slipway lease history aws-ci --since 1h
      slipway lease history "$SLIPWAY_LEASE_ID"
    """
    api = context.obj
    if UUID.fullmatch(lease_id := subject.partition(":")[0]):
        rows = api.get("lease-broker", path("leases", lease_id, "history"))["items"]
    else:
        ago = _seconds("--since", since)
        at = None if ago is None else (now() - timedelta(seconds=ago)).isoformat()
        rows = api.get("lease-broker", path("lease-pools", subject, "history"), since=at, limit=last)["items"]
    show(rows, HISTORY, output, nothing="nothing was decided yet")


def _change(
    context: typer.Context, pool: str, body: dict[str, Any], reason: str, output: Output, *, done: str = "changed"
) -> None:
    body = {name: value for name, value in body.items() if value is not None or name == "pacing"}
    told = context.obj.patch("lease-broker", path("lease-pools", pool), body | {"reason": reason})
    if output is Output.JSON:
        as_json(told)
    else:
        revision = (told or {}).get("revision")
        print(f"{pool} is {done}" + (f", revision {revision}" if revision is not None else ""))
