"""Attack running services by every known door (`make attack`): SEED, BEFORE=COMMIT, ONLY=name,name.

A line each with the request and the answer. Ends with `doors closed N of N`, and exits with 1 unless all are. With
BEFORE the same scripts attack the services of that commit, and it ends with `open N of M`.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import asyncpg
import httpx2

from slipway_common.base.clock import monotonic_seconds
from slipway_local.servers.supervisor import Supervisor, run
from tests.attack.doors import DOORS
from tests.attack.earlier import EARLIER, run_earlier
from tests.attack.target import Answer, Target
from tests.drills.harness import Harness

SPEED: Final = 4.0


async def attack(supervisor: Supervisor, seed: int, names: Sequence[str]) -> Mapping[str, Answer]:
    """Try every door in an order of this seed; those that take long beside the others."""
    found: dict[str, Answer] = {}

    async def one(name: str) -> None:
        try:
            found[name] = await DOORS[name].script(target)
        except (OSError, TimeoutError, httpx2.HTTPError, asyncpg.PostgresError) as error:
            found[name] = Answer("its script", f"{error!r:.200}", closed=False, tried=False)
        mark = "closed" if found[name].closed else "OPEN  " if found[name].tried else "failed"
        print(f"{mark} {name}: {found[name].request} → {found[name].answer}", flush=True)

    async with Harness(supervisor, seed=seed, speed=SPEED, log=lambda text: print(text, flush=True)) as harness:
        target = Target(harness)
        try:
            await target.start()
            async with asyncio.TaskGroup() as group:
                for name in names:
                    if DOORS[name].beside:
                        group.create_task(one(name))
                for name in harness.rng.sample(names, len(names)):
                    if not DOORS[name].beside:
                        await one(name)
        finally:
            await target.stop()
    return found


async def report(supervisor: Supervisor, seed: int, names: Sequence[str]) -> int:
    """Attack, and print how many doors are closed; returns the exit code."""
    began = monotonic_seconds()
    found = await attack(supervisor, seed, names)
    closed = sum(answer.closed for answer in found.values())
    print(f"{monotonic_seconds() - began:.0f} s, SEED={seed}")
    if commit := os.environ.get(EARLIER):
        tried = sum(answer.tried for answer in found.values())
        print(f"open {tried - closed} of {len(found)} at {commit}, of which {tried} could be tried")
        return 0
    print(f"doors closed {closed} of {len(found)}")
    return 0 if closed == len(found) == len(names) else 1


def main() -> int:
    if before := os.environ.get("BEFORE"):
        return run_earlier("tests.attack", ["attack"], before, os.environ)
    names = [name for name in (os.environ.get("ONLY") or "").split(",") if name] or list(DOORS)
    if unknown := set(names) - set(DOORS):
        print(f"ONLY: unknown {', '.join(sorted(unknown))}; doors are {', '.join(DOORS)}", file=sys.stderr)
        return 2
    try:
        seed = int(os.environ.get("SEED") or 1)
    except ValueError:
        print("SEED has to be an integer", file=sys.stderr)
        return 2
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it logs every attempt until the broker has started
    return run(partial(report, seed=seed, names=names))


if __name__ == "__main__":
    sys.exit(main())
