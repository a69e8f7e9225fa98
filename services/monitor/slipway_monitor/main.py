"""The `slipway-monitor` command: reports the demand of queues that a file lists. Composes, and reads the settings."""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from random import Random
from typing import Annotated

import typer
from prometheus_client import start_http_server

from slipway_common.base.settings import from_environment
from slipway_common.declaration.strict_yaml import Invalid
from slipway_common.events.pool import DemandReported
from slipway_common.observability import telemetry
from slipway_monitor.domain.counts import Unreadable, reports
from slipway_monitor.leadership import Alone, Leadership
from slipway_monitor.loops.report import Reporter, read_once
from slipway_monitor.publisher import Publisher
from slipway_monitor.settings import Settings
from slipway_monitor.source_file import Entry, read

LOG = telemetry.logger(__name__)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
File = Annotated[Path, typer.Argument(metavar="FILE", help="File of sources, in YAML")]


@app.callback()
def monitor() -> None:
    """Report the demand of queues to a Slipway deployment"""


@app.command("check")
def check(file: File) -> None:
    """Check the sources of a file by reading each once

    Prints what would be reported, and why. Publishes nothing, and needs no Slipway.

    \b
    Example:
      slipway-monitor check sources.yaml

    Exit codes: 0 all sources can be read, 1 some cannot, 2 the file is invalid.
    """
    entries = _entries(file)
    raise typer.Exit(0 if asyncio.run(_check(entries)) else 1)


@app.command("run")
def run(file: File) -> None:
    """Report the demand of all sources until SIGTERM

    SLIPWAY_KAFKA names the brokers. With SLIPWAY_DATABASE_URL several replicas share the sources, each read by one of
    them; without it run one. Metrics are on SLIPWAY_PORT (7305).

    \b
    Example:
      SLIPWAY_KAFKA=127.0.0.1:9092 slipway-monitor run sources.yaml
    """
    entries, settings = _entries(file), from_environment(Settings)
    telemetry.configure_logs("monitor")
    asyncio.run(_run(entries, settings))


def _entries(file: Path) -> list[Entry]:
    try:
        return read(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        print(f"{file}: {getattr(error, 'strerror', None) or 'is not UTF-8'}", file=sys.stderr)
    except Invalid as error:
        for problem in error.problems:
            place = f"{file}:{problem.line}" if problem.line else str(file)
            print(": ".join(part for part in (place, problem.path, problem.reason) if part), file=sys.stderr)
    raise typer.Exit(2)


async def _check(entries: list[Entry]) -> bool:
    return all(await asyncio.gather(*(_check_one(entry) for entry in entries)))


async def _check_one(entry: Entry) -> bool:
    """Print what a source would report, and why; True if it can be read."""
    settings, source = entry.settings, entry.open()
    try:
        found = await read_once(source, settings.timeout_seconds)
        made, missing = reports(settings.reporting, found.counts, found.observed_at, None)
    except Unreadable as error:
        print(f"{settings.name}: no report: {error}")
        return False
    finally:
        await source.close()
    for each in made:
        print(f"{settings.name}: pool {each.pool_id}: {_described(each)}")
    for label in missing:
        print(f"{settings.name}: pool {(settings.pools or {})[label]}: no report: no count of {label}")
    return not missing


def _described(report: DemandReported) -> str:
    """Counts of a report, and the reason for them."""
    if report.total is not None:
        return f"{report.total} waiting or running; those wait that no worker has claimed"
    if report.claimed is not None:
        return f"{report.pending} waiting, {report.claimed} running, all on workers of this pool"
    return f"{report.pending} waiting; those that run are the claims that workers report"


async def _run(entries: list[Entry], settings: Settings) -> None:
    """Report until SIGTERM or SIGINT."""
    if settings.port:
        start_http_server(settings.port, settings.host)
    reporting = asyncio.create_task(_report(entries, settings))
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, reporting.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await reporting
    LOG.info("stopped")


async def _report(entries: list[Entry], settings: Settings) -> None:
    names, url = [entry.settings.name for entry in entries], settings.database_url
    leadership = Leadership(url, settings.topic_prefix, names) if url else Alone()
    publisher, rng = Publisher(settings.kafka, settings.topic_prefix), Random()  # noqa: S311 (spreads reads)
    try:
        await publisher.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(leadership.run())
            for entry in entries:
                group.create_task(Reporter(entry, leadership, publisher.publish, rng).run(len(entries)))
            LOG.info("started", sources=len(entries))
    finally:
        await publisher.stop()


if __name__ == "__main__":
    app()
