"""The `slipway-monitor` command: reports the demand of queues that a file lists. Composes, and reads the settings."""

import argparse
import asyncio
import contextlib
import inspect
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

from slipway_api.events.pool import DemandReported
from slipway_common.base.process.groups import keep_private
from slipway_common.base.settings import from_environment
from slipway_common.declaration.strict_yaml import Invalid
from slipway_common.observability import telemetry
from slipway_common.web import beside
from slipway_monitor.domain.counts import Unreadable, reports
from slipway_monitor.http import app
from slipway_monitor.leadership import Alone, Leadership
from slipway_monitor.loops.report import Reporter, close, read_once
from slipway_monitor.loops.watch import watched
from slipway_monitor.publisher import Publisher
from slipway_monitor.settings import Settings
from slipway_monitor.source_file import Entry, read

LOG = telemetry.logger(__name__)
CHECKED_AT_ONCE: Final = 50
"""Sources that are read at once by `check`; of kind `exec` each is a process."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Report the demand of queues to a Slipway deployment."""
    parser = argparse.ArgumentParser(prog="slipway-monitor", description=main.__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (check, run):
        about = inspect.cleandoc(command.__doc__ or "")
        formatter = argparse.RawDescriptionHelpFormatter
        added = commands.add_parser(
            command.__name__, help=about.partition("\n")[0], description=about, formatter_class=formatter
        )
        added.add_argument("file", metavar="FILE", type=Path, help="file of sources, in YAML")
        added.set_defaults(command=command)
    given = parser.parse_args(arguments)
    entries = _entries(given.file)
    if entries is None:
        return 2
    code: int = given.command(entries)
    return code


def check(entries: list[Entry]) -> int:
    """Check the sources of a file by reading each once

    Prints what would be reported, and why. Publishes nothing, and needs no Slipway.

    Example:
      slipway-monitor check sources.yaml

    Exit codes: 0 all sources can be read, 1 some cannot, 2 the file is invalid.
    """
    return 0 if asyncio.run(_check(entries)) else 1


def run(entries: list[Entry]) -> int:
    """Report the demand of all sources until SIGTERM

    The file is read at the start: restart the monitor after a change. SLIPWAY_KAFKA names the brokers. With
    SLIPWAY_DATABASE_URL several replicas share the sources, each read by one of them; without it run one. Metrics are
    on SLIPWAY_PORT (7305), for tokens of SLIPWAY_TOKENS_FILE with the scope read:metrics.

    Example:
      SLIPWAY_KAFKA=127.0.0.1:9092 slipway-monitor run sources.yaml
    """
    settings = from_environment(Settings)
    telemetry.configure_logs("monitor")
    try:
        asyncio.run(_run(entries, settings))
    except PortInUse as error:
        sys.exit(str(error))
    return 0


def _entries(file: Path) -> list[Entry] | None:
    """Sources of a file; None if it is invalid, with the reasons on standard error."""
    try:
        return read(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        print(f"{file}: {getattr(error, 'strerror', None) or 'is not UTF-8'}", file=sys.stderr)
    except Invalid as error:
        for problem in error.problems:
            place = f"{file}:{problem.line}" if problem.line else str(file)
            print(": ".join(part for part in (place, problem.path, problem.reason) if part), file=sys.stderr)
    return None


async def _check(entries: list[Entry]) -> bool:
    """Print what each source would report, and why, in their order; True if all can be read."""
    places = asyncio.Semaphore(CHECKED_AT_ONCE)
    checks = [asyncio.create_task(_check_one(entry, places)) for entry in entries]
    found = []
    for check_ in checks:
        is_readable, lines = await check_
        print(*lines, sep="\n", flush=True)
        found.append(is_readable)
    return all(found)


async def _check_one(entry: Entry, places: asyncio.Semaphore) -> tuple[bool, list[str]]:
    """True if a source can be read, and lines of what it would report, and why."""
    settings = entry.settings
    try:
        async with places:
            source = entry.open()
            try:
                found = await read_once(source, settings.timeout_seconds)
            finally:
                await close(source, settings.name)
        made, missing = reports(settings.reporting, found.counts, found.observed_at, None)
    except Unreadable as error:
        return False, [f"{settings.name}: no report: {error}"]
    lines = [f"{settings.name}: pool {each.pool_id}: {_described(each)}" for each in made]
    lines += [
        f"{settings.name}: pool {(settings.pools or {})[label]}: no report: no count of {label}" for label in missing
    ]
    return not missing, lines


def _described(report: DemandReported) -> str:
    """Counts of a report, and the reason for them."""
    if report.total is not None:
        return f"{report.total} waiting or running; those wait that no worker has claimed"
    if report.claimed is not None:
        return f"{report.pending} waiting, {report.claimed} running, all on workers of this pool"
    return f"{report.pending} waiting; those that run are the claims that workers report"


class PortInUse(Exception):
    """Something else listens on the port; the text says so, and what to do."""


async def _run(entries: list[Entry], settings: Settings) -> None:
    """Report until SIGTERM or SIGINT. Raises PortInUse."""
    keep_private()
    started = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        if settings.port:
            await stack.enter_async_context(_served(settings, started))
        reporting = asyncio.create_task(_report(entries, settings, started))
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, reporting.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await reporting
    LOG.info("stopped")


@contextlib.asynccontextmanager
async def _served(settings: Settings, started: asyncio.Event) -> AsyncIterator[None]:
    routes = app(settings, lambda: [] if started.is_set() else ["the broker is unavailable"])
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(beside.served(routes, settings, settings.host, settings.port))
        except OSError as error:
            where = f"{settings.host}:{settings.port}: {os.strerror(error.errno or 0)}"
            advice = "stop what listens there, or set SLIPWAY_HOST and SLIPWAY_PORT"
            raise PortInUse(f"monitor cannot listen on {where}; {advice}") from None
        yield


async def _report(entries: list[Entry], settings: Settings, started: asyncio.Event) -> None:
    names, url = [entry.settings.name for entry in entries], settings.database_url
    leadership = Leadership(url, settings.topic_prefix, names) if url else Alone()
    publisher, rng = Publisher(settings.kafka_access, settings.topic_prefix), Random()  # noqa: S311 (spreads reads)
    try:
        await publisher.start()
        started.set()
        with watched():
            async with asyncio.TaskGroup() as group:
                group.create_task(leadership.run())
                for entry in entries:
                    reporter = Reporter(entry, leadership, publisher.publish, rng)
                    group.create_task(reporter.run(len(entries)), name=entry.settings.name)
                LOG.info("started", sources=len(entries))
    finally:
        await publisher.stop()


if __name__ == "__main__":
    sys.exit(main())
