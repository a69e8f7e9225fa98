"""`slipway error`: errors of workers, which they report or make in their reports."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from slipway_client.cli.options import AsOutput, OfPool, noun, now, revisions, workers
from slipway_client.cli.tables import Field, Output, short, show
from slipway_client.view import moments

app = noun("List errors of workers")

OfConfig = Annotated[
    str | None,
    typer.Option("--config", metavar="CONFIG", help="Launch config revision [default: all]", autocompletion=revisions),
]
OfWorker = Annotated[
    str | None,
    typer.Option("--worker", metavar="WORKER", help="Worker, each error [default: all]", autocompletion=workers),
]
Since = Annotated[str, typer.Option(metavar="DURATION", help="Age of the oldest error, such as 12h")]
TOTALS: Final = ("number", "code", ("config", lambda row: row["launch_config_id"]), "pool", "last hour")
EACH: Final[tuple[Field, ...]] = (
    ("at", lambda row: moments.clock(moments.at(row["at"]), now())),
    ("worker", lambda row: short(row["worker_id"])),
    "code",
    "sample",
)


@app.command("ls")
def list_errors(
    context: typer.Context,
    pool: OfPool = None,
    config: OfConfig = None,
    worker: OfWorker = None,
    since: Since = "24h",
    output: AsOutput = Output.TABLE,
) -> None:
    """List errors of workers by code, or each of one worker

    Workers report errors by `slipway-worker` or POST /workers/ID/error. Of one worker at most 1,000 an hour are stored;
    the others are counted as `other`. Mistakes in its reports, such as `unnamed-end`, are listed once a worker. With
    -o json, the numbers of each hour.

    \b
    Examples:
      slipway error ls --pool linux
      slipway error ls --worker 3f2c9a77 --since 1h
    """
    begin = _begin(since)
    if worker is not None:
        rows = context.obj.items("provisioner", "/errors", worker=worker, pool=pool, config=config, since=begin)
        show(rows, EACH, output, nothing="no errors")
        return
    rows = context.obj.get("provisioner", "/errors/totals", pool=pool, config=config, since=begin)["items"]
    show(rows if output is Output.JSON else _by_code(rows), TOTALS, output, nothing="no errors")


def _begin(since: str) -> str:
    try:
        return (now() - timedelta(seconds=moments.seconds(since))).isoformat()
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f"--since: {error}") from error


def _by_code(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Numbers of all hours by launch config and code, the largest first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:  # newest hours first
        key = (row["launch_config_id"], row["code"])
        known = found.setdefault(
            key,
            {
                "number": 0,
                "code": row["code"],
                "launch_config_id": row["launch_config_id"],
                "pool": row["pool_id"],
                "last hour": row["number"],
            },
        )
        known["number"] += row["number"]
    return sorted(found.values(), key=lambda row: (-row["number"], row["code"]))
