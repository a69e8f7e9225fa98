"""Live view of a deployment on the terminal: a screen, or plain lines where the output is no terminal."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from slipway_common.base.sanitize import printable

if TYPE_CHECKING:  # what a screen needs is imported when one is wanted: other commands start without it
    from slipway_client.cli.watching import Watch
    from slipway_client.transport.http import Api
    from slipway_client.view.snapshot import EventLine, Snapshot

HISTORY_SECONDS: Final = 600.0  # of events on the first screen


def run(api: "Api", interval_seconds: float, *, plain: bool, once: bool) -> int:
    """Show the deployment until q or Ctrl-C, or `once`. Returns the exit code."""
    code = 0
    try:
        code = asyncio.run(_top(api, interval_seconds, plain=plain or not has_screen(), once=once))
    except* BrokenPipeError:
        # The reader has closed the pipe. The interpreter flushes at its end and must not write into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def has_screen() -> bool:
    """True if the output is a terminal that can be drawn on, and this process is in its foreground."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in {"dumb", "unknown"}:
        return False
    try:
        return os.tcgetpgrp(sys.stdout.fileno()) == os.getpgrp()
    except OSError:
        return False


async def _top(api: "Api", interval_seconds: float, *, plain: bool, once: bool) -> int:
    """Returns the exit code: 0 for q and Ctrl-C, the usual way to end it."""
    from slipway_client.cli.watching import Watch, fetcher

    task = asyncio.current_task()
    assert task is not None
    caught: list[int] = []

    def interrupt(signum: int) -> None:
        caught.append(signum)
        task.cancel()

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(signum, interrupt, signum)
    async with fetcher(api.urls, api.headers) as fetch:
        watch = Watch(
            fetch,
            title=f"top  {api.urls['provisioner'].partition('://')[2]}",
            kafka=api.kafka,
            prefix=api.topic_prefix,
            interval_seconds=interval_seconds,
            history_seconds=0.0 if plain and not once else HISTORY_SECONDS,
        )
        try:
            if once:
                return await show_once(watch, plain=plain)
            await follow(watch, api, plain=plain, interval_seconds=interval_seconds, end=task.cancel)
        except asyncio.CancelledError:
            if caught and caught[0] != signal.SIGINT:
                return 128 + caught[0]
    return 0


async def follow(
    watch: "Watch",
    api: "Api",
    *,
    plain: bool,
    interval_seconds: float = 1.0,
    seconds: float = 0.0,
    end: Callable[[], object],
) -> None:
    """Show until cancelled, or for `seconds` (0: forever). `api` reads the pages that keys open; `end` is called when
    the user presses q."""
    async with _watched(watch):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds or None):
                await (_in_lines(watch, interval_seconds) if plain else _on_screen(watch, api, interval_seconds, end))


async def show_once(watch: "Watch", *, plain: bool) -> int:
    """Show the state once every service has answered or failed. Returns 1 if a service has failed; Kafka only adds
    events."""
    from slipway_client.cli.watching import KAFKA
    from slipway_client.view import screen

    async with _watched(watch):
        await watch.until_complete()
    snapshot = watch.snapshot()
    if plain:
        _print(snapshot, list(_lines(snapshot, watch.take(), {})))
    else:
        from rich.console import Console

        console = Console(highlight=False, markup=False, emoji=False)
        rows = len(snapshot.pools) + len(snapshot.configs) + len(snapshot.lease_pools)
        console.print(screen.render(snapshot, console.width, console.height + 2 * rows))  # nothing has to be cut
    for name, problem in watch.problems.items():
        print(f"{name} is unavailable: {printable(problem)}", file=sys.stderr)
    return 1 if watch.problems.keys() - {KAFKA} else 0


@contextlib.asynccontextmanager
async def _watched(watch: "Watch") -> AsyncIterator[None]:
    """Run the watch meanwhile; its errors are raised here."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(watch.run())
        yield
        running.cancel()


async def _in_lines(watch: "Watch", interval_seconds: float) -> None:
    from slipway_client.view import narration

    await watch.until_complete()
    before, ordered = watch.snapshot(), narration.InOrder()
    try:
        while True:
            await asyncio.sleep(interval_seconds)
            now = watch.snapshot()
            ordered.add(_lines(now, watch.take(), narration.rates(before, now)))
            _print(now, ordered.due(now.now))
            before = now
    finally:
        _print(before, ordered.due())


def _print(snapshot: "Snapshot", lines: "Sequence[EventLine]") -> None:
    for line in lines:
        print(f"{snapshot.stamp(line.at)}  {line.text}")
    sys.stdout.flush()


def _lines(snapshot: "Snapshot", events: "Sequence[EventLine]", rates: "Mapping[str, float]") -> "Iterator[EventLine]":
    """Events since the last call, and a line per pool."""
    from slipway_client.view import narration
    from slipway_client.view.snapshot import EventLine
    from slipway_client.view.table import span

    for line in events:
        yield EventLine(line.at, f"** {printable(line.text)}")
    stale = snapshot.unavailable("provisioner")
    for pool in snapshot.pools:
        configs = [config for config in snapshot.configs if config.pool_id == pool.id]
        age = f"  ({span(stale.unavailable_seconds)} old)" if stale else ""
        text = narration.status(pool, configs, rates.get(pool.id))
        yield EventLine(snapshot.now, f"{printable(text)}{age}")


async def _on_screen(watch: "Watch", api: "Api", interval_seconds: float, end: Callable[[], object]) -> None:
    """Draw each key, and each change until every service has answered, then one per interval, at least one a second."""
    from slipway_client.cli.browser import Browser
    from slipway_client.cli.terminal import Terminal

    wake = asyncio.Event()
    async with Browser(watch, api, changed=wake.set, end=end) as browser:
        with Terminal(resized=wake.set, pressed=browser.press) as terminal:
            while True:
                wake.clear()
                watch.changed.clear()
                terminal.draw(browser.lines(*terminal.size))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(interval_seconds, 1.0)):
                        await (wake if watch.complete else watch.changed).wait()
