"""Simulation of a scheduler: seeded clients, faults and cancellations on a virtual clock, with the rules as checks.

`python -m tests.terraform.simulation SEED…` prints a line per seed; the same seed gives the same run.
"""

import asyncio
import contextlib
import logging
import random
import sys
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from slipway_terraform.domain.errors import (
    OutcomeUnknown,
    ProviderCrashed,
    ProviderStartError,
    QueueFull,
    QueueTimeout,
    SchedulerClosed,
)
from slipway_terraform.domain.policy import Policy
from slipway_terraform.scheduler.shared import SharedScheduler, WorkspaceScheduler
from tests.support import virtual_time
from tests.support.plugin_world import FakePlugin, Times, World, spec

CLIENTS = 150
REFUSED = (QueueTimeout, QueueFull, ProviderStartError, SchedulerClosed)


class Run(msgspec.Struct):
    """Outcome of a simulation: ends of clients by kind, and broken rules."""

    seed: int
    ends: dict[str, int]
    starts: int
    broken: list[str]


def policy_of(rng: random.Random) -> Policy:
    return Policy(
        ttl_invocations=rng.choice([1, 3, 10, 100]),
        margin=rng.choice([0.0, 0.1, 0.5]),
        max_age_seconds=rng.choice([20.0, 3600.0]),
        idle_seconds=rng.choice([0.0, 5.0, 300.0]),
        max_processes=rng.choice([2, 3, 5]),
        max_concurrency=rng.choice([1, 2, 4]),
        max_overtakes=rng.choice([0, 2, 8]),
        max_waiters=rng.choice([40, 1000]),
    )


def simulate(seed: int) -> Run:
    """One run."""
    return virtual_time.run(_simulate(seed))


async def _simulate(seed: int) -> Run:
    rng = random.Random(seed)
    policy = policy_of(rng)
    world = World(rng, Times(failing_starts=rng.choice([0.0, 0.0, 0.1])))
    kind = rng.choice([SharedScheduler, SharedScheduler, WorkspaceScheduler])
    world.shared = kind is SharedScheduler
    scheduler = kind(world, policy, rng=rng, key=rng.randbytes(8))
    ends: dict[str, int] = defaultdict(int)
    turns: dict[str, list[int]] = defaultdict(list)  # grants of callers of one configuration, by their arrival
    loop = asyncio.get_running_loop()

    async def client(number: int) -> None:
        names = rng.sample("abcdefgh", rng.choice([1, 1, 1, 2, min(3, policy.max_processes)]))
        wait = rng.choice([0.5, 30.0, 1000.0])
        deadline = loop.time() + wait
        try:
            lease = await scheduler.acquire([spec(name) for name in names], owner=f"w{number % 40}", deadline=deadline)
        except REFUSED as error:
            ends[type(error).__name__] += 1
            if loop.time() > deadline + 1e-6:
                world.broken.append(f"client {number} waited beyond its deadline")
            return
        if len(names) == 1 and wait == 1000.0 and kind is SharedScheduler:
            turns[names[0]].append(number)
        async with lease:
            plugins = world.plugin_of(lease.env)
            if [each.name for each in plugins] != sorted(names):
                world.broken.append(f"client {number} wants {names} and got {[each.name for each in plugins]}")
            for _ in range(rng.choice([0, 1, 1, 2])):
                try:
                    async with lease.invocation():
                        await use(plugins)
                        if not all(each.is_alive() for each in plugins):
                            raise RuntimeError("the plugin did not respond")
                except (ProviderCrashed, OutcomeUnknown) as error:
                    ends[type(error).__name__] += 1
                    return
            if rng.random() < 0.05:
                lease.taint("test")
        ends["done"] += 1

    async def use(plugins: Sequence[FakePlugin]) -> None:
        for each in plugins:
            each.users += 1
            if each.users > policy.max_concurrency:
                world.broken.append(f"{each.name} has {each.users} users")
        try:
            await asyncio.sleep(rng.choice([0.1, 1.0, 1.0, 20.0]))
        finally:
            for each in plugins:
                each.users -= 1

    async def trouble() -> None:
        """Crashes, leaks, illnesses, new binaries, cancellations."""
        while True:
            await asyncio.sleep(rng.uniform(0, 4))
            if tasks and rng.random() < 0.5:
                rng.choice(tasks).cancel()
            if world.plugins:
                victim = world.plugins[rng.choice(sorted(world.plugins))]
                match rng.choice(["crash", "leak", "ill", "replaced", "none"]):
                    case "crash":
                        victim.end("killed by SIGKILL")
                    case "leak":
                        victim.memory_bytes = policy.soft_memory_bytes * rng.choice([1, 2])
                    case "ill":
                        victim.is_healthy = False
                    case "replaced":
                        victim.is_replaced = True

    tasks: list[asyncio.Task[None]] = []
    faults = asyncio.create_task(trouble())
    for number in range(CLIENTS):
        await asyncio.sleep(rng.choice([0.0, 0.0, 0.1, 3.0]))
        tasks.append(asyncio.create_task(client(number)))
        if world.most_processes > policy.max_processes:
            world.broken.append(f"{world.most_processes} processes")
    early = rng.random() < 0.2
    if not early:
        await asyncio.wait(tasks)
        world.broken += [f"{each.handle} still in use" for each in scheduler.processes() if each.in_use]
        faults.cancel()
        world.times.failing_starts = 0.0
        for name in "abcdefgh":  # whatever has happened, everybody is served again
            await asyncio.sleep(700)  # longer than any backoff
            async with await scheduler.acquire([spec(name)], owner="last", deadline=loop.time() + 1000):
                pass
    faults.cancel()
    if early:
        world.forced = True
    await scheduler.aclose(rng.choice([0.0, 5.0]) if early else 0.0)
    await asyncio.wait(tasks)
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            task.result()
        ends["cancelled"] += task.cancelled()
    if world.most_processes > policy.max_processes:
        world.broken.append(f"{world.most_processes} processes")
    if world.processes or scheduler.processes() or scheduler.waiting:
        world.broken.append(f"{world.processes} processes and {scheduler.waiting} callers are left")
    for name, order in turns.items():
        if order != sorted(order):
            world.broken.append(f"callers of {name} were served in the order {order}")
    return Run(seed, dict(ends), len(world.starts), world.broken)


def main(seeds: list[int]) -> int:
    failed = 0
    for seed in seeds:
        run = simulate(seed)
        failed += bool(run.broken)
        print(f"seed {seed}: {run.starts} starts, {run.ends}", *run.broken[:3], sep="; ")
    print(f"{len(seeds) - failed} of {len(seeds)} runs kept the rules")
    return bool(failed)


if __name__ == "__main__":
    logging.disable()
    sys.exit(main([int(seed) for seed in sys.argv[1:]]))
