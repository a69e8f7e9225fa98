"""`slipway pool` and `slipway demand`."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from slipway_client import moments, options
from slipway_client.http import path
from slipway_client.options import AsOutput, For, PoolId, Reason, Until, noun, now, until_words
from slipway_client.tables import Field, Output, as_json, pairs, show
from slipway_common.clock import utc_now

app = noun("Worker pools.")
demand = noun("Demand of worker pools.")

DECISIONS_SHOWN: Final = 8


def waits(row: Mapping[str, Any]) -> str | None:
    """How long the oldest task, or request, has waited."""
    seconds = row.get("oldest_wait_seconds")
    return None if seconds is None else moments.about(seconds)


def mode(row: Mapping[str, Any]) -> Any:
    """Its mode, unless somebody or something holds it."""
    return "frozen" if row.get("frozen") else "paused" if row.get("paused") else row.get("mode")


FIELDS: Final[tuple[Field, ...]] = (
    "id",
    ("mode", mode),
    ("capacity", lambda row: f"{row.get('min_capacity')}–{row.get('max_capacity')}"),
    "pending",
    ("wait", waits),
    "claimed",
    "wanted",
    "serving",
    "needed",
)


@app.command("ls")
def list_pools(context: typer.Context, output: AsOutput = Output.TABLE) -> None:
    """List worker pools: what they want and what they have.

    \b
    Example:
      slipway pool ls
    """
    show(context.obj.get("provisioner", "/pools")["items"], FIELDS, output, nothing="no worker pools")


@app.command("show")
def show_pool(context: typer.Context, pool: PoolId, output: AsOutput = Output.TABLE) -> None:
    """Show one pool and its last decisions; `slipway why POOL` says what holds it back.

    \b
    Example:
      slipway pool show linux
    """
    api = context.obj
    row = api.get("provisioner", path("pools", pool))
    decisions = api.get("provisioner", path("pools", pool, "decisions"), limit=DECISIONS_SHOWN)["items"]
    if output is Output.JSON:
        as_json(row | {"decisions": decisions})
        return
    shown = {name: value for name, value in row.items() if name != "oldest_wait_seconds"}
    pairs(shown | {"oldest_wait": waits(row)}, now())
    print()
    fields: tuple[Field, ...] = (
        ("at", lambda made: moments.clock(moments.at(made["last_at"]), now())),
        ("decision", lambda made: made["id"]),
        "launched",
        "because",
    )
    show(decisions, fields, output, nothing="no decision yet")


@app.command("pause")
def pause_pool(context: typer.Context, pool: PoolId, reason: Reason, for_: For = None, until: Until = None) -> None:
    """Launch nothing more in POOL; its workers go on. What waits is cancelled.

    \b
    Example:
      slipway pool pause linux --reason "image is being replaced" --for 30m
    """
    ends = options.until(for_, until)
    context.obj.post("provisioner", path("pools", pool, "pause"), {"reason": reason, "until": ends})
    print(f"{pool} is paused, {until_words(ends)}")


@app.command("resume")
def resume_pool(context: typer.Context, pool: PoolId, reason: Reason) -> None:
    """Launch in a paused POOL again.

    \b
    Example:
      slipway pool resume linux --reason "image is replaced"
    """
    context.obj.post("provisioner", path("pools", pool, "resume"), {"reason": reason})
    print(f"{pool} goes on")


@app.command("freeze")
def freeze_pool(context: typer.Context, pool: PoolId, reason: Reason) -> None:
    """Launch nothing more in POOL until somebody unfreezes it; its workers go on. What waits is cancelled.

    \b
    Example:
      slipway pool freeze linux --reason "image is suspect"
    """
    context.obj.post("provisioner", path("pools", pool, "freeze"), {"reason": reason})
    print(f"{pool} is frozen, until somebody unfreezes it")


@app.command("unfreeze")
def unfreeze_pool(context: typer.Context, pool: PoolId, reason: Reason) -> None:
    """Launch in a frozen POOL again, also in one that a bad image has frozen.

    \b
    Example:
      slipway pool unfreeze linux --reason "image is replaced"
    """
    context.obj.post("provisioner", path("pools", pool, "unfreeze"), {"reason": reason})
    print(f"{pool} goes on")


@demand.command("set")
def set_demand(
    context: typer.Context,
    pool: PoolId,
    pending: Annotated[int, typer.Option(min=0, help="Tasks that wait.")],
    claimed: Annotated[int, typer.Option(min=0, help="Tasks that run now on workers of this pool.")] = 0,
    source: Annotated[str, typer.Option(help="Who counts. A pool's demand is the sum over its sources.")] = "operator",
    valid_for: Annotated[float, typer.Option(min=1, help="Seconds until the report is stale.")] = 300.0,
) -> None:
    """Report what a queue holds now. A newer report of the same source replaces it.

    \b
    Example:
      slipway demand set linux --pending 12 --claimed 3 --valid-for 600
    """
    body = {"pending": pending, "claimed": claimed, "observed_at": utc_now().isoformat(), "source": source}
    context.obj.put("provisioner", path("pools", pool, "demand"), body | {"valid_for_seconds": valid_for})
    print(f"{pool}: {pending} pending, {claimed} claimed, from {source}")
