"""`make bench-ec2`: cost of a launched EC2 machine in the provisioner, beside a bare loop of the same client.

Two processes launch, list and terminate as many machines of the stand-in for EC2, in turns: the provisioner's loops
with their database (`bench/ec2/provisioner.py`), and a loop of the SDK's client without anything else
(`bench/ec2/bare.py`). A machine costs the CPU time of its process, user and system, from the launch until it is
confirmed gone, and its part of the calls that are made for many; the stand-in and PostgreSQL are processes of their
own. The stand-in counts the calls. Its token buckets are wide, since the bare loop does not pace itself. Prints the
figures of calls for one machine and for ten, then the claims; exits with 1 if one is false. CELL=1 or 10 takes one of
them, ROUNDS=3 are counted after a warm-up, SEED=1 gives the order of the sides, KEEP=1 writes bench/results/ec2.json.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from random import Random
from typing import Final

import httpx2

from bench import committed
from bench.claims import report as report_claims
from bench.ec2 import figures
from bench.ec2.figures import Comparison, Played, Results
from bench.ec2.side import CALL_SECONDS, IMAGE, Cell, Sample
from bench.events import surroundings
from bench.sides import Side, started
from slipway_common.database import migrate
from slipway_local.ec2.scenario import RUN, TERMINATE
from slipway_local.ec2.server import EmbeddedEc2
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor, run
from tests.support.ec2 import AT_ONCE
from tests.support.folders import disk_folder
from tests.support.provisioner import SERVICE

# The stand-in takes most of the time of a round: it creates and ends each machine in moto.
CELLS: Final = {"1 machine": Cell(10, 1), "10 machines": Cell(5, 10)}
ROUNDS: Final = 3
WIDE: Final = {"burst": 10_000, "refill_per_second": 10_000}
# Nothing takes time in this cloud, and no machine boots, which would be a process beside the measured ones.
SCENARIO: Final = AT_ONCE | {"images": {IMAGE: {"bad": "never_registers"}}, "throttles": {RUN: WIDE, TERMINATE: WIDE}}


class Cloud:
    """The stand-in, through its operators' routes."""

    def __init__(self, client: httpx2.AsyncClient, seed: int) -> None:
        self._client = client
        self._seed = seed

    async def clear(self) -> None:
        (await self._client.delete("/scenario")).raise_for_status()
        (await self._client.post("/scenario", json=SCENARIO | {"seed": self._seed})).raise_for_status()

    async def calls(self, machines: int) -> dict[str, int]:
        """Calls since it was cleared, by operation. Raises AssertionError unless each has succeeded, and so many
        machines were launched and are gone."""
        state, truth = [(await self._client.get(path)).json() for path in ("/state", "/truth")]
        replies: dict[str, dict[str, int]] = state["calls"]["replies"]
        failed = {operation: codes for operation, codes in replies.items() if set(codes) != {"OK"}}
        left = [counts for counts in truth["values"].values() if counts["instances"]]
        if failed or left or state["instances"]["created"] != machines:
            raise AssertionError(f"not {machines} machines launched and ended: {state['instances']}, {failed}, {left}")
        return {operation: sum(codes.values()) for operation, codes in replies.items()}


async def measure(supervisor: Supervisor, *, cells: Mapping[str, Cell], seed: int, rounds: int) -> int:
    """Play all rounds on embedded servers."""
    before = os.getloadavg()[0]
    with disk_folder("slipway-bench-") as folder:
        server, ec2 = EmbeddedPostgres(folder / "postgres"), EmbeddedEc2(folder)
        print("starting PostgreSQL and the stand-in for EC2 …", flush=True)
        await supervisor.start(server, ec2)
        url = await server.create_database("bench")
        await migrate.upgrade(url, SERVICE)
        async with (
            started("bench.ec2.bare", ec2.url) as bare,
            started("bench.ec2.provisioner", ec2.url, url) as provisioner,
            httpx2.AsyncClient(base_url=ec2.url, trust_env=False, timeout=CALL_SECONDS) as client,
        ):
            await asyncio.gather(bare.ready(), provisioner.ready())
            sides, rng = {"bare": bare, "provisioner": provisioner}, Random(seed)
            found = {
                name: await _compared(name, cell, sides, Cloud(client, seed), rng, rounds)
                for name, cell in cells.items()
            }
        await supervisor.stop()
    sdk = {name: version(name) for name in ("aiobotocore", "moto")}
    results = Results(
        command=f"make bench-ec2 SEED={seed} ROUNDS={rounds}",
        on=surroundings(before) | sdk | {"rounds": rounds},
        cells=found,
    )
    committed.write_json(os.environ, "ec2.json", results)
    print("", *figures.lines(results), sep="\n")
    return report_claims(figures.claims(results))


async def _compared(
    name: str, cell: Cell, sides: Mapping[str, Side], cloud: Cloud, rng: Random, rounds: int
) -> Comparison:
    played: dict[str, list[Played]] = {side: [] for side in sides}
    for number in range(1 + rounds):
        print(f"{name} a call, {f'round {number} of {rounds}' if number else 'warm-up'} …", flush=True)
        for side in rng.sample(list(sides), len(sides)):
            await cloud.clear()
            sample = await sides[side].ask(cell, Sample)
            played[side].append(Played(sample, await cloud.calls(cell.machines)))
    return figures.compared(cell, **played)


def chosen(cell: str) -> Mapping[str, Cell]:
    """The cell for CELL=, by the number of machines of a call; all of them without it. Raises ValueError."""
    found = {name: each for name, each in CELLS.items() if cell in ("", name.split()[0])}
    if not found:
        raise ValueError(f"CELL={cell}: unknown cell; expected {' or '.join(name.split()[0] for name in CELLS)}")
    return found


def numbers(environment: Mapping[str, str]) -> tuple[int, int]:
    """SEED= and ROUNDS=, the number of counted rounds. Raises ValueError."""
    seed, rounds = environment.get("SEED", "1"), environment.get("ROUNDS", str(ROUNDS))
    try:
        found = int(seed), int(rounds)
    except ValueError:
        found = 0, 0
    if found[1] < 1:
        raise ValueError(f"SEED={seed} ROUNDS={rounds}: SEED has to be an integer, and ROUNDS one of at least 1")
    return found


if __name__ == "__main__":
    try:
        wanted = chosen(os.environ.get("CELL", ""))
        seed, rounds = numbers(os.environ)
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    sys.exit(run(partial(measure, cells=wanted, seed=seed, rounds=rounds)))
