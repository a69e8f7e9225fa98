"""`make terraform-fair`: 200 configurations on a scheduler that may have 8 processes.

On a virtual clock, with starts, runs and stops as long as those of the AWS provider, every configuration has callers
who come again as soon as they were served, for 5 minutes: one each, or 20 for each of 8 popular configurations, which
could keep all processes for themselves. A fair share is the time in which every configuration has a process once. Then
200 callers come at once for real processes, whose number the process table tells; there a fair share is the time in
which those who came before are served, at the pace of the run. Nobody may wait longer than 3 shares. `thrash` are
replaced plugins per run; above .5 it is logged. SEED=7 plays another run, FULL=1 an hour, MUTANT=name a broken copy.
Prints a line per run, then the claims; exits with 1 if one is false.
"""

import asyncio
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from bench.claims import report
from slipway_local.servers.supervisor import run
from slipway_terraform.domain.policy import Policy
from slipway_terraform.domain.thrash import ALERT_ABOVE
from slipway_terraform.scheduler.shared import SharedScheduler
from slipway_terraform.scheduler.thrashing import LOG
from tests.support import virtual_time
from tests.support.folders import temporary_folder
from tests.support.plugin_world import Times, World, spec
from tests.support.plugins import plugin, plugins_in, shared, soon
from tests.support.terraform_daemon import plugin_pid

CONFIGURATIONS: Final = 200
# Without a limit of invocations nothing else makes room: callers alone decide which plugins stay.
POLICY: Final = Policy(max_processes=8, ttl_invocations=None)
SHARES_MAX: Final = 3.0
VIRTUAL_SECONDS: Final = 300.0  # four fair shares, so that a wait can be too long
FULL_SECONDS: Final = 3600.0
# Longest times of the AWS provider on one busy core; each is drawn evenly from 0 on.
TIMES: Final = Times(start_seconds=2.0, stop_seconds=1.0)
RUN_SECONDS: Final = 3.0
MIXES: Final[Mapping[str, Mapping[int, int]]] = {"even": {}, "popular": dict.fromkeys(range(8), 20)}
"""Callers of configurations that have more than one."""


class Fairness(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a run. `shares` are the longest waits of callers, in fair shares of their waits."""

    mix: str
    leases: int
    served: int
    """Configurations that were served."""
    shares: float
    wait_seconds: float
    processes: int
    thrash: float
    alerts: int

    def __str__(self) -> str:
        return (
            f"{self.mix:<10}{self.leases:>6} leases of {self.served} configurations, {self.processes} processes; "
            f"longest wait {self.wait_seconds:.1f} s, {self.shares:.2f} shares; thrash {self.thrash:.2f}, "
            f"logged {self.alerts} times"
        )


class Alerts(logging.Handler):
    """Counts warnings of thrash."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.number = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.number += record.getMessage().startswith("thrash: ")


async def play_virtual(
    mix: str, seed: int, seconds: float = VIRTUAL_SECONDS, configurations: int = CONFIGURATIONS
) -> Fairness:
    """Callers who come again for so long. Waits that have not ended by then count as well."""
    rng, alerts = random.Random(seed), Alerts()
    world = World(rng, TIMES)
    LOG.addHandler(alerts)
    scheduler = SharedScheduler(world, POLICY, rng=rng)
    waits: list[float] = []
    leases: Counter[int] = Counter()
    loop = asyncio.get_running_loop()

    async def caller(configuration: int, number: int) -> None:
        while True:
            since = loop.time()
            try:
                lease = await scheduler.acquire(
                    [spec(f"c{configuration}")], owner=f"{configuration}-{number}", deadline=float("inf")
                )
            finally:
                waits.append(loop.time() - since)
            async with lease, lease.invocation():
                leases[configuration] += 1
                await asyncio.sleep(rng.uniform(0, RUN_SECONDS))

    callers = [
        asyncio.create_task(caller(configuration, number))
        for configuration in range(configurations)
        for number in range(MIXES[mix].get(configuration, 1))
    ]
    await asyncio.sleep(seconds)
    for each in callers:
        each.cancel()
    for end in await asyncio.gather(*callers, return_exceptions=True):
        assert isinstance(end, asyncio.CancelledError), end
    await scheduler.aclose(0)
    LOG.removeHandler(alerts)
    share = configurations * (TIMES.start_seconds + RUN_SECONDS + TIMES.stop_seconds) / 2 / POLICY.max_processes
    return Fairness(
        mix=mix,
        leases=leases.total(),
        served=len(leases),
        shares=max(waits) / share,
        wait_seconds=max(waits),
        processes=world.most_processes,
        thrash=(len(world.starts) - POLICY.max_processes) / leases.total(),
        alerts=alerts.number,
    )


async def play_real(folder: Path) -> Fairness:
    """One caller per configuration, all at once, for processes of test plugins with sockets in `folder`."""
    alerts, most = Alerts(), 0
    LOG.addHandler(alerts)
    waits: list[float] = []
    pids: set[int] = set()
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def caller(configuration: int) -> None:
        wanted = plugin(configuration={"region": configuration})
        async with await scheduler.acquire([wanted], owner=f"{configuration}", deadline=soon(600)) as lease:
            waits.append(loop.time() - began)
            async with lease.invocation():
                pids.add(plugin_pid(lease.env))

    async def count() -> None:
        nonlocal most
        while True:
            most = max(most, len(await asyncio.to_thread(plugins_in, folder)))
            await asyncio.sleep(0.2)

    async with shared(folder, POLICY) as scheduler:
        counting = asyncio.create_task(count())
        await asyncio.gather(*(caller(configuration) for configuration in range(CONFIGURATIONS)))
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
    LOG.removeHandler(alerts)
    turn = max(waits) / CONFIGURATIONS
    return Fairness(
        mix="processes",
        leases=len(waits),
        served=len(waits),
        shares=max(wait / (turn * max(place, POLICY.max_processes)) for place, wait in enumerate(waits, 1)),
        wait_seconds=max(waits),
        processes=most,
        thrash=(len(pids) - POLICY.max_processes) / len(waits),
        alerts=alerts.number,
    )


def claims(played: list[Fairness]) -> dict[str, bool]:
    longest, thrash = max(each.shares for each in played), max(each.thrash for each in played)
    return {
        f"each waits at most {SHARES_MAX:g} shares ({longest:.2f})": all(each.shares <= SHARES_MAX for each in played),
        f"all {CONFIGURATIONS} configurations are served": all(each.served == CONFIGURATIONS for each in played),
        f"at most {POLICY.max_processes} processes": all(each.processes <= POLICY.max_processes for each in played),
        f"thrash above {ALERT_ABOVE} is logged, once (up to {thrash:.2f})": all(
            each.alerts == (each.thrash > ALERT_ABOVE) for each in played
        ),
    }


def main() -> int:
    seed = os.environ.get("SEED") or "1"
    if not seed.isdecimal():
        print(f"SEED={seed}: expected a number", file=sys.stderr)
        return 2
    seconds = FULL_SECONDS if os.environ.get("FULL") == "1" else VIRTUAL_SECONDS
    played: list[Fairness] = []
    for mix in MIXES:
        played.append(virtual_time.run(play_virtual(mix, int(seed), seconds)))
        print(played[-1], flush=True)

    async def real(_: object) -> int:
        with temporary_folder("fair-") as folder:
            played.append(await play_real(folder))
        print(played[-1])
        return report(claims(played))

    return run(real)


if __name__ == "__main__":
    sys.exit(main())
