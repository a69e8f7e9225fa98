"""`slipway error`: errors of workers, which they report or make in their reports."""

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
import typer

from slipway_api.http.provisioner.workers import ErrorTotal, WorkerError
from slipway_client.cli.commands.workers import full_id
from slipway_client.cli.options import AsOutput, Limit, OfPool, ago, api_of, clock, noun, revisions, workers
from slipway_client.cli.tables import Field, Output, first, short, show, table

app = noun("List errors of workers")


class _Total(msgspec.Struct):
    """Number of errors of a launch config by code, and of those in its last hour with one."""

    launch_config_id: str
    code: str
    pool_id: str
    last_hour: int
    number: int = 0


OfConfig = Annotated[
    str | None,
    typer.Option("--config", metavar="CONFIG", help="Launch config revision [default: all]", autocompletion=revisions),
]
OfWorker = Annotated[
    str | None,
    typer.Option("--worker", metavar="WORKER", help="Worker, each error [default: all]", autocompletion=workers),
]
Since = Annotated[str, typer.Option(metavar="DURATION", help="Age of the oldest error, such as 12h")]
TOTALS: Final[tuple[Field[_Total], ...]] = (
    "number",
    "code",
    ("config", lambda row: row.launch_config_id),
    ("pool", lambda row: row.pool_id),
    "last_hour",
)
EACH: Final[tuple[Field[WorkerError], ...]] = (
    ("at", lambda row: clock(row.at)),
    ("worker", lambda row: short(row.worker_id)),
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
    limit: Limit = 100,
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
    begin = ago("--since", since)
    if worker is not None:
        api = api_of(context)
        id_ = full_id(api, worker)
        errors = api.rows(
            WorkerError, "provisioner", "/errors", limit=limit + 1, worker=id_, pool=pool, config=config, since=begin
        )
        show(errors, EACH, output, nothing="no errors", limit=limit)
        return
    rows = api_of(context).rows(ErrorTotal, "provisioner", "/errors/totals", pool=pool, config=config, since=begin)
    if output is Output.JSON:
        show(rows, (), output, nothing="", limit=limit)
    else:
        table(first(_by_code(row.value for row in rows), limit), TOTALS, nothing="no errors")


def _by_code(rows: Iterable[ErrorTotal]) -> list[_Total]:
    """Numbers of all hours by launch config and code, the largest first."""
    found: dict[tuple[str, str], _Total] = {}
    for row in rows:  # newest hours first
        total = _Total(row.launch_config_id, row.code, row.pool_id, last_hour=row.number)
        found.setdefault((row.launch_config_id, row.code), total).number += row.number
    return sorted(found.values(), key=lambda row: (-row.number, row.code))
