"""`make e2e`: many demand changes while every part is killed once, judged from the ledger, the topics and the rows.

CHANGES, POOLS, KILL (all, none, or names), SEED, FULL come from the environment. A change counts only if it changes
what is wanted. Each kill falls at the first instant after a seeded one with at least 5 calls or grants in flight.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import asyncpg
import msgspec

from slipway_common.clock import monotonic_seconds
from slipway_common.declaration import Declaration
from slipway_local import check, evidence
from slipway_local.demo import keep
from slipway_local.deployment import Deployment
from slipway_local.guard import guard
from slipway_local.supervisor import Supervisor, run

PARTS: Final = ("provisioner", "weight-calculator", "lease-broker", "kafka", "postgres")
SPEED: Final = 40.0
MAXIMUM: Final = 12
IN_FLIGHT_MIN: Final = 5
# Machines are told to leave as soon as they are too many: demand moves every few milliseconds here.
SECONDS: Final = {"idle_timeout_seconds": 4.0, "stop_grace_seconds": 200.0, "reap_seconds": 40.0}
MET_SECONDS: Final = 5.0
MET_WITHIN_SECONDS: Final = 90.0  # 10 to 15 where nothing else runs
BUSY_WITHIN_SECONDS: Final = 30.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one run does. `kills` are (second, part); `stops` are (second, part, seconds stopped)."""

    seed: int
    changes: int
    pools: int
    seconds: float
    kills: Sequence[tuple[float, str]]
    stops: Sequence[tuple[float, str, float]]


def plan(environment: dict[str, str]) -> Plan:
    """Read the arguments; all chance comes from the seed."""
    full = environment.get("FULL") == "1"
    seed = int(environment.get("SEED") or 3)
    changes = int(environment.get("CHANGES") or (2000 if full else 600))
    wished = environment.get("KILL") or "all"
    parts = list(PARTS) if wished == "all" else [] if wished == "none" else wished.split(",")
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"KILL={wished}: no part {', '.join(sorted(unknown))}; there is {', '.join(PARTS)}")
    rng = Random(seed)
    rounds = 5 if full else 1
    seconds = 150.0 if full else min(22.0, max(10.0, changes / 25))
    kills = []
    step = seconds * 0.9 / max(1, rounds * len(parts))
    for number in range(rounds):
        shuffled = rng.sample(parts, len(parts))
        kills += [
            (step * (number * len(parts) + place) + rng.uniform(0.2, 0.8) * step, part)
            for place, part in enumerate(shuffled)
        ]
    stops = []
    if full:
        stops = [(seconds * (0.2 + 0.25 * place), name, 20.0) for place, name in enumerate(PARTS[:3])]
    return Plan(
        seed=seed, changes=changes, pools=int(environment.get("POOLS") or 20), seconds=seconds, kills=kills, stops=stops
    )


def declaration(plan: Plan, url: str) -> Declaration:
    """Pools of three configs over two accounts, whose limits bind in every burst."""
    accounts = ("e2e-a", "e2e-b")
    zones = (("zone-a", 0), ("zone-b", 0), ("zone-c", 1))
    return Declaration.model_validate(
        {
            "version": 1,
            "lease_pools": [
                {
                    "id": name,
                    "limit": 3 * plan.pools // 2,
                    "hold_seconds": 1200 / SPEED,
                    "ttl_seconds": 300 / SPEED,
                    "reserve_seconds": 180 / SPEED,
                    "pacing": "off",
                }
                for name in accounts
            ],
            "accounts": [
                {
                    "id": name,
                    "provider": "simulated",
                    "region": "sim-1",
                    "credential": "none",
                    "identity": name,
                    "lease_pool": name,
                    "settings": {"url": url},
                }
                for name in accounts
            ],
            "worker_pools": [
                {
                    "id": f"pool-{number:02d}",
                    "max_capacity": MAXIMUM,
                    "launch_configs": [
                        {
                            "id": f"pool-{number:02d}-{zone}",
                            "account": accounts[account],
                            "zone": zone,
                            "instance_type": "m5",
                            "image": "linux-1",
                        }
                        for zone, account in zones
                    ],
                }
                for number in range(plan.pools)
            ],
        }
    )


class Run:
    """One deployment under load and under fire."""

    def __init__(self, supervisor: Supervisor, deployment: Deployment, plan: Plan) -> None:
        self.supervisor = supervisor
        self.deployment = deployment
        self.plan = plan
        self.rng = Random(plan.seed)
        self.levels = {f"pool-{number:02d}": 0 for number in range(plan.pools)}
        self.in_flight: list[int] = []
        self.changed = 0

    async def change(self) -> None:
        """All changes, evenly over the run, and more as long as parts are killed: where starting them again takes long,
        the last kills would find nothing in flight. Each changes what its pool wants."""
        began = monotonic_seconds()
        for number in count():
            if number >= self.plan.changes and len(self.in_flight) == len(self.plan.kills):
                return
            await asyncio.sleep(max(0.0, began + number * self.plan.seconds / self.plan.changes - monotonic_seconds()))
            pool_id = self.rng.choice(sorted(self.levels))
            # Mostly small moves, sometimes to an end; always within 0…maximum, so that wanted changes too.
            level = self.rng.choice([n for n in range(MAXIMUM + 1) if n != self.levels[pool_id]])
            await self.deployment.call("PUT", "simulator", f"/demand/{pool_id}", {"pending": level})
            self.levels[pool_id] = level
            self.changed += 1

    async def kill(self) -> None:
        """Kill each part at its instant and start it again at once."""
        began = monotonic_seconds()
        for at, part in self.plan.kills:
            await asyncio.sleep(max(0.0, began + at - monotonic_seconds()))
            busy = await self._busy_enough()
            self.in_flight.append(busy)
            await self.supervisor.kill(part)
            print(f"{monotonic_seconds() - began:6.1f} s  killed {part} with {busy} in flight", flush=True)
            await self.supervisor.restart(part)

    async def stop(self) -> None:
        """SIGSTOP services and let them go on."""
        began = monotonic_seconds()
        for at, part, seconds in self.plan.stops:
            await asyncio.sleep(max(0.0, began + at - monotonic_seconds()))
            self.supervisor.pause(part)
            print(f"{monotonic_seconds() - began:6.1f} s  stopped {part} for {seconds:.0f} s", flush=True)
            await asyncio.sleep(seconds)
            self.supervisor.resume(part)

    async def _busy_enough(self) -> int:
        """Wait for the first instant with enough calls or grants in flight; how many there were."""
        # While a service is stopped there may be nothing in flight for as long.
        deadline = monotonic_seconds() + BUSY_WITHIN_SECONDS
        busy = 0
        while monotonic_seconds() < deadline:
            try:
                db = await asyncpg.connect(self.deployment.database_url, timeout=2)
                try:
                    while monotonic_seconds() < deadline:
                        busy = await db.fetchval(
                            "SELECT (SELECT coalesce(sum(units), 0) FROM provisioner.launch_batch "
                            "WHERE state = 'calling') + (SELECT coalesce(sum(units), 0) FROM lease_broker.leases "
                            "WHERE state = 'reserved' AND ended_at IS NULL)"
                        )
                        if busy >= IN_FLIGHT_MIN:
                            return int(busy)
                        await asyncio.sleep(0.005)
                finally:
                    await db.close(timeout=1)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(0.05)
        return int(busy)

    async def met(self, within_seconds: float) -> set[str]:
        """Pools whose serving workers equalled what is wanted for 5 s on end, by the rows and by the ledger's
        registered machines."""
        since: dict[str, float] = {}
        done: set[str] = set()
        deadline = monotonic_seconds() + within_seconds
        while len(done) < len(self.levels) and monotonic_seconds() < deadline:
            pools = (await self.deployment.call("GET", "provisioner", "/pools"))["items"]
            state = (await self.deployment.call("GET", "simulator", "/state"))["pools"]
            now = monotonic_seconds()
            for pool in pools:
                wanted = self.levels[pool["id"]]
                machines = state.get(pool["id"], {}).get("busy", 0)
                if pool["serving"] == wanted and machines == wanted:
                    since.setdefault(pool["id"], now)
                    if now - since[pool["id"]] >= MET_SECONDS:
                        done.add(pool["id"])
                else:
                    since.pop(pool["id"], None)
                    done.discard(pool["id"])
            await asyncio.sleep(0.2)
        for pool in pools:
            if pool["id"] not in done:
                print(f"  not met: {pool} busy={state.get(pool['id'])} wanted={self.levels[pool['id']]}")
        return done


async def e2e(supervisor: Supervisor, wished: Plan) -> int:
    folder = Path(tempfile.mkdtemp(prefix="slipway-"))
    guard().remove(folder)
    deployment = Deployment(supervisor, folder, speed=SPEED, seconds=SECONDS)
    try:
        await deployment.start()
        await deployment.apply(declaration(wished, deployment.url("simulator")))
        await deployment.call(
            "POST",
            "simulator",
            "/scenario",
            {"seed": wished.seed, "speed": SPEED, "accounts": {"*": {}}, "visibility_seconds": 5},
        )
        print(f"started; SEED={wished.seed} CHANGES={wished.changes} POOLS={wished.pools}", flush=True)
        work = Run(supervisor, deployment, wished)
        await asyncio.gather(work.change(), work.kill(), work.stop())
        met = await work.met(within_seconds=MET_WITHIN_SECONDS)
        await asyncio.sleep(0 if len(met) == wished.pools else 1)
        await asyncio.sleep(max(0.0, deployment.settle_seconds - MET_SECONDS))
        found = await evidence.gather(
            ledger_path=deployment.ledger,
            kafka=deployment.kafka,
            prefix=deployment.prefix,
            database_url=deployment.database_url,
            settle_seconds=deployment.settle_seconds,
        )
        return summarise(wished, work, met, check.judge(found))
    finally:
        keep(folder)
        await supervisor.stop()
        await deployment.remove()
        shutil.rmtree(folder, ignore_errors=True)


def summarise(wished: Plan, work: Run, met: set[str], report: check.Report) -> int:
    problems = list(report.problems)
    if len(met) < wished.pools:
        problems.append(f"{wished.pools - len(met)} pools did not reach what is wanted")
    if any(busy < IN_FLIGHT_MIN for busy in work.in_flight):
        problems.append(f"a kill fell with fewer than {IN_FLIGHT_MIN} in flight: {work.in_flight}")
    for name, (peak, cap) in report.peaks.items():
        if name.startswith("account"):
            print(f"  {name}: at most {peak} at once, {cap} allowed")
    print(f"  {report.line()}")
    for problem in problems:
        print(f"  PROBLEM {problem}")
    busy = ",".join(map(str, work.in_flight))
    print(
        f"met {len(met)}/{wished.pools}, changes {work.changed}, kills {len(work.in_flight)} (in flight {busy}), "
        f"doubled {report.doubled}, lost {report.lost}, dead {report.dead}"
    )
    return 1 if problems else 0


def main() -> int:
    try:
        wished = plan(dict(os.environ))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return run(lambda supervisor: e2e(supervisor, wished))


if __name__ == "__main__":
    sys.exit(main())
