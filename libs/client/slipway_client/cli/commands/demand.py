"""`slipway demand` commands: sources of demand and their reports."""

from typing import Annotated, Final

import typer

from slipway_api.http.provisioner.demand import DemandReportResult, DemandSource, RemovedSource
from slipway_client.cli.options import AsOutput, Limit, OptionalReason, PoolId, api_of, noun, now, pools, sources
from slipway_client.cli.tables import Field, Output, show
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import path
from slipway_client.view import moments
from slipway_client.view.phrases import count
from slipway_common.base.clock import utc_now

app = noun("Manage sources of demand")

FIELDS: Final[tuple[Field[DemandSource], ...]] = (
    ("pool", lambda row: row.pool_id),
    "source",
    "state",
    "pending",
    "claimed",
    ("age", lambda row: moments.about((now() - row.observed_at).total_seconds())),
    ("valid until", lambda row: moments.clock(row.valid_until, now())),
    ("dropped at", lambda row: moments.clock(row.protected_until, now())),
    ("reported by", lambda row: row.reported_by),
)

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="Name of the source", autocompletion=sources)]
OnePool = Annotated[
    str | None,
    typer.Argument(metavar="[POOL]", help="Worker pool [default: all]", show_default=False, autocompletion=pools),
]


@app.command("ls")
def list_sources(
    context: typer.Context, pool: OnePool = None, limit: Limit = 100, output: AsOutput = Output.TABLE
) -> None:
    """List sources of demand with their last reports

    The demand of a pool is the sum over its sources. A stale source launches no workers. Its last report protects idle
    ones until it is dropped, unless it reports again.

    \b
    Example:
      slipway demand ls linux
    """
    rows = api_of(context).rows(DemandSource, "provisioner", "/demand", limit=limit + 1, pool=pool)
    drop = ("reported by", "valid until")
    show(rows, FIELDS, output, nothing="no source has reported demand", drop=drop, limit=limit)


@app.command("rm")
def remove_source(context: typer.Context, pool: PoolId, source: Source, reason: OptionalReason = None) -> None:
    """Remove a source of demand

    Its reports up to now no longer count, so that idle workers may stop. A later report brings it back: stop its
    monitor first.

    \b
    Example:
      slipway demand rm linux old-queue --reason "the monitor was renamed"
    """
    row = api_of(context).delete(
        RemovedSource, "provisioner", path("pools", pool, "demand", source), reason=reason or None
    )
    tasks = f"{row.pending} pending and {count(row.claimed, 'claimed task')}"
    print(f"source {source} of pool {pool} is removed: its {tasks} no longer count")
    if row.was_fresh:
        print("its last report was still valid: if its monitor runs, the next report brings it back")


@app.command("set")
def set_demand(
    context: typer.Context,
    pool: PoolId,
    pending: Annotated[int, typer.Option(metavar="N", min=0, help="Pending tasks in the queue")],
    claimed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Tasks claimed by workers [default: as they report]"),
    ] = None,
    source: Annotated[str, typer.Option(metavar="NAME", help="Source of the report")] = "operator",
    valid_for: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="Time until the report is stale")] = 300.0,
) -> None:
    """Report the number of tasks in a queue

    The report replaces the previous one of the same source. The demand of a pool is the sum over its sources.

    \b
    Example:
      slipway demand set linux --pending 12 --claimed 3 --valid-for 600
    """
    # Not zero: busy workers whose tasks nobody counts would be asked to leave.
    body = {"pending": pending, "claimed": claimed, "observed_at": utc_now().isoformat(), "source": source}
    answer = api_of(context).put(
        DemandReportResult, "provisioner", path("pools", pool, "demand"), body | {"valid_for_seconds": valid_for}
    )
    if not answer.stored:
        raise Failed(f"not stored: a report of {source} with a later time was stored before; check this host's clock")
    running = "claimed as its workers report" if claimed is None else f"{claimed} claimed"
    print(f"{pool}: {pending} pending, {running}, from {source}")
