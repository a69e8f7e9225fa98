"""`make ec2-scale`: the instance reaper on 10,000 EC2 instances in 50 accounts, and launches beside it.

A process of its own is the provisioner (`bench/fleet/provisioner.py`), whose memory and CPU time are measured. The
stand-in for EC2 has the instances, answers within the documented rate limits, and takes half a second for a launch.
Rounds of the reaper with launches beside take turns with windows of launches alone, beside which a bare client of the
SDK lists the same accounts in another process: so the stand-in and the machine are as busy, and what differs is what
the reaper takes from the launches of its own process. There are more rounds than asked for if these have too few
launches for a 99th percentile. Exits with 1 if a claim is false. N=10000 instances, ACCOUNTS=50, ROUNDS=3, SEED=1;
KEEP=1 writes bench/results/ec2-scale.json.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from random import Random
from typing import Any, Final

import asyncpg
import httpx2

from bench import committed
from bench.claims import report
from bench.events import surroundings
from bench.fleet import figures
from bench.fleet.parts import CALL_SECONDS, IMAGE, INSTANCE_TYPE, REGION, ZONE, Fleet, Listed, Played, Window
from bench.sides import Side, started
from slipway_common.base.ids import new_id
from slipway_common.database import migrate
from slipway_local.ec2.server import EmbeddedEc2
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Supervisor, run
from tests.support.ec2 import AT_ONCE
from tests.support.folders import disk_folder
from tests.support.provisioner import SERVICE

INSTANCES: Final = 10_000
ACCOUNTS: Final = 50
ROUNDS: Final = 3
ROUNDS_MAX: Final = 6  # so that the command ends within a minute
BATCH: Final = 10
LAUNCHES_PER_SECOND: Final = 10.0
LAUNCH_SECONDS: Final = 0.5
SCENARIO: Final = AT_ONCE | {"has_machines": False, "latency_seconds": LAUNCH_SECONDS, "latency_sigma": 0}
LEAST_SECONDS: Final = 4.0


async def _deployment(url: str) -> str:
    """Id of the deployment, drawn by the migration, which tags its instances."""
    db = await asyncpg.connect(url)
    try:
        found: str = await db.fetchval("SELECT id FROM provisioner.deployment")
        return found
    finally:
        await db.close()


async def seeded(
    client: httpx2.AsyncClient, deployment: str, instances: int, accounts: int
) -> dict[str, dict[str, list[str]]]:
    """Instances of the stand-in by account and batch, as many as given, with the tags of the deployment."""
    fleet = {}
    for place in range(accounts):
        number = f"{500_000_000_000 + place}"
        count = instances * (place + 1) // accounts - instances * place // accounts
        batches = [new_id() for _ in range(max(1, count // BATCH))]
        tags = {"slipway-account": f"fleet/{number}", "slipway-incarnation": "bench", "slipway-launch-config": number}
        body = {"account": number, "region": REGION, "zone": ZONE, "instance_type": INSTANCE_TYPE, "image": IMAGE}
        size = max(1, count // len(batches))
        more = {"batches": batches, "size": size, "tags": tags | {"slipway-deployment": deployment}}
        response = (await client.post("/instances", json=body | more)).raise_for_status()
        fleet[number] = dict(zip(batches, response.json()["instance_ids"], strict=True))
    return fleet


async def measure(supervisor: Supervisor, *, instances: int, accounts: int, rounds: int, seed: int) -> int:
    """Play all windows on embedded servers."""
    before = os.getloadavg()[0]
    with disk_folder("slipway-bench-") as folder:
        server, ec2 = EmbeddedPostgres(folder / "postgres"), EmbeddedEc2(folder)
        print("starting PostgreSQL and the stand-in for EC2 …", flush=True)
        await supervisor.start(server, ec2)
        url = await server.create_database("bench")
        await migrate.upgrade(url, SERVICE)
        deployment = await _deployment(url)
        async with (
            httpx2.AsyncClient(base_url=ec2.url, trust_env=False, timeout=CALL_SECONDS) as client,
            started("bench.fleet.bare") as bare,
            started("bench.fleet.provisioner", url) as provisioner,
        ):
            (await client.post("/scenario", json=SCENARIO | {"seed": seed})).raise_for_status()
            fleet = Fleet(ec2.url, await seeded(client, deployment, instances, accounts), LAUNCHES_PER_SECOND, seed)
            print(f"{fleet.instances:,} instances in {accounts} accounts run; preparing the provisioner …", flush=True)
            for side in (bare, provisioner):
                side.send(fleet)
            await asyncio.gather(bare.ready(), provisioner.ready())
            played = await _windows(bare, provisioner, rounds, Random(seed), fleet)
            state = (await client.get("/state")).json()
            truth = (await client.get("/truth")).json()["values"].get(deployment, {})
        await supervisor.stop()
    replies: Mapping[str, Mapping[str, int]] = state["calls"]["replies"]
    launched = sum(len(window.launches) for window in played["windows"])
    if truth.get("instances") != fleet.instances + launched:
        raise AssertionError(f"{truth} runs, not {fleet.instances} instances and {launched} launched ones")
    found = figures.results(
        f"make ec2-scale N={instances} ACCOUNTS={accounts} ROUNDS={rounds} SEED={seed}",
        surroundings(before) | {"aiobotocore": version("aiobotocore")},
        instances=fleet.instances,
        accounts=accounts,
        beside=played["beside"],
        apart=played["apart"],
        memory_before=played["warm_up"][0].before_mb,
        bare=played["bare"],
        throttled=sum(codes.get("RequestLimitExceeded", 0) for codes in replies.values()),
    )
    committed.write_json(os.environ, "ec2-scale.json", found)
    print("", *figures.lines(found), sep="\n")
    return report(figures.claims(found))


async def _windows(bare: Side, provisioner: Side, rounds: int, rng: Random, fleet: Fleet) -> dict[str, list[Any]]:
    """Rounds with launches beside, and windows of launches that last as long, beside which the bare client lists, in an
    order of chance."""
    found: dict[str, list[Any]] = {"beside": [], "apart": [], "bare": [], "windows": []}
    # The first call in an account signs in there.
    warm_up = await provisioner.ask(Window(), Played)
    found["warm_up"], found["windows"] = [warm_up], [warm_up]
    seconds = LEAST_SECONDS
    number = 0
    while number < rounds or (number < ROUNDS_MAX and _fewest(found) < figures.LAUNCHES_MIN):
        number += 1
        print(f"round {number} of {max(rounds, number)} …", flush=True)
        for side in rng.sample(("beside", "apart"), 2):
            window = asyncio.create_task(provisioner.ask(Window() if side == "beside" else Window(seconds), Played))
            while side == "apart" and not window.done():
                listed = await bare.ask(None, Listed)
                if listed.instances < fleet.instances:
                    raise AssertionError(f"the bare client lists {listed.instances} instances")
                found["bare"].append(listed)
            played = await window
            found[side].append(played)
            found["windows"].append(played)
            seconds = max(LEAST_SECONDS, played.seconds)
    return found


def _fewest(found: Mapping[str, Sequence[Any]]) -> int:
    """Launches on the side that has fewer."""
    return min(sum(len(played.launches) for played in found[side]) for side in ("beside", "apart"))


def main() -> int:
    environment = os.environ
    try:
        instances, accounts, rounds, seed = (
            int(environment.get(name) or usual)
            for name, usual in (("N", INSTANCES), ("ACCOUNTS", ACCOUNTS), ("ROUNDS", ROUNDS), ("SEED", 1))
        )
    except ValueError as error:
        print(f"N, ACCOUNTS, ROUNDS and SEED are numbers: {error}", file=sys.stderr)
        return 2
    if not 1 <= accounts <= instances or rounds < 1:
        print(f"N={instances} ACCOUNTS={accounts} ROUNDS={rounds}: write at least one of each", file=sys.stderr)
        return 2
    return run(partial(measure, instances=instances, accounts=accounts, rounds=rounds, seed=seed))


if __name__ == "__main__":
    sys.exit(main())
