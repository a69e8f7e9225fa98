"""`make e2e`: many demand changes while every part is killed once, checked by the ledger, the topics and the rows.

CHANGES, POOLS, KILL (all, none, or names), SEED and FULL are read from the environment. Every change alters the wanted
capacity. Each kill happens at the first instant after a seeded one with at least 5 calls or grants in flight.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Final

import asyncpg
import msgspec

from slipway_common.base.clock import monotonic_seconds
from slipway_common.declaration.models import Declaration
from slipway_local.check import evidence, path_check
from slipway_local.demo.deployment import Deployment
from slipway_local.demo.program import keep
from slipway_local.servers.supervisor import Supervisor, run
from tests.support.folders import temporary_folder

PARTS: Final = ("provisioner", "weight-calculator", "lease-broker", "kafka", "postgres")
SPEED: Final = 40.0
MAXIMUM: Final = 12
IN_FLIGHT_MIN: Final = 5
# Machines in excess of demand are stopped soon, since demand changes every few milliseconds here.
SECONDS: Final = {"idle_timeout_seconds": 4.0, "stop_grace_seconds": 200.0, "reap_seconds": 40.0}
MET_SECONDS: Final = 5.0
MET_WITHIN_SECONDS: Final = 180.0  # 10 to 15 on an idle machine
BUSY_WITHIN_SECONDS: Final = 60.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of one run. `kills` are (second, part); `pauses` are (second, part, seconds paused)."""

    seed: int
    changes: int
    pools: int
    seconds: float
    kills: Sequence[tuple[float, str]]
    pauses: Sequence[tuple[float, str, float]]


def plan(environment: dict[str, str]) -> Plan:
    """Plan of a run by its arguments; all random numbers are derived from the seed. Raises ValueError."""
    full = environment.get("FULL") == "1"
    seed = int(environment.get("SEED") or 3)
    changes = int(environment.get("CHANGES") or (2000 if full else 600))
    kill = environment.get("KILL") or "all"
    parts = list(PARTS) if kill == "all" else [] if kill == "none" else kill.split(",")
    if unknown := set(parts) - set(PARTS):
        raise ValueError(f"KILL={kill}: unknown part {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
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
    pauses = []
    if full:
        pauses = [(seconds * (0.2 + 0.25 * place), name, 20.0) for place, name in enumerate(PARTS[:3])]
    return Plan(
        seed=seed,
        changes=changes,
        pools=int(environment.get("POOLS") or 20),
        seconds=seconds,
        kills=kills,
        pauses=pauses,
    )


def declaration(plan: Plan) -> Declaration:
    """Pools of three configs over two accounts, with limits that are reached in every burst."""
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
                }
                for name in accounts
            ],
            "worker_pools": [
                {
                    "id": f"pool-{number:02d}",
                    "max_capacity": MAXIMUM,
                    "launch_configs": [
                        {
                            "name": f"pool-{number:02d}-{zone}",
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
    """One deployment under demand changes, kills and pauses."""

    def __init__(self, supervisor: Supervisor, deployment: Deployment, plan: Plan) -> None:
        self.supervisor = supervisor
        self.deployment = deployment
        self.plan = plan
        self.rng = Random(plan.seed)
        self.levels = {f"pool-{number:02d}": 0 for number in range(plan.pools)}
        self.in_flight: list[int] = []
        self.changed = 0

    async def change(self) -> None:
        """Change demand evenly over the run, and further until the last kill.

        Restarts may take long, and the last kills would otherwise find nothing in flight.
        """
        began = monotonic_seconds()
        for number in count():
            if number >= self.plan.changes and len(self.in_flight) == len(self.plan.kills):
                return
            await asyncio.sleep(max(0.0, began + number * self.plan.seconds / self.plan.changes - monotonic_seconds()))
            pool_id = self.rng.choice(sorted(self.levels))
            # Always within 0…MAXIMUM, so that the wanted capacity changes too.
            level = self.rng.choice([n for n in range(MAXIMUM + 1) if n != self.levels[pool_id]])
            await self.deployment.call("PUT", "simulator", f"/demand/{pool_id}", {"pending": level})
            self.levels[pool_id] = level
            self.changed += 1

    async def kill(self) -> None:
        """Kill each part at its time and restart it at once."""
        began = monotonic_seconds()
        for at, part in self.plan.kills:
            await asyncio.sleep(max(0.0, began + at - monotonic_seconds()))
            busy = await self._busy_enough()
            self.in_flight.append(busy)
            await self.supervisor.kill(part)
            print(f"{monotonic_seconds() - began:6.1f} s  killed {part} with {busy} in flight", flush=True)
            await self.supervisor.restart(part)

    async def pause(self) -> None:
        """Pause services by SIGSTOP and resume them."""
        began = monotonic_seconds()
        for at, part, seconds in self.plan.pauses:
            await asyncio.sleep(max(0.0, began + at - monotonic_seconds()))
            self.supervisor.pause(part)
            print(f"{monotonic_seconds() - began:6.1f} s  paused {part} for {seconds:.0f} s", flush=True)
            await asyncio.sleep(seconds)
            self.supervisor.resume(part)

    async def _busy_enough(self) -> int:
        """Wait until enough calls or grants are in flight; return their number."""
        # While a service is paused, nothing may be in flight.
        deadline = monotonic_seconds() + BUSY_WITHIN_SECONDS
        busy = 0
        while monotonic_seconds() < deadline:
            try:
                db = await asyncpg.connect(self.deployment.database_url, timeout=BUSY_WITHIN_SECONDS)
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

    async def pools_at_target(self, within_seconds: float) -> set[str]:
        """Pools whose workers and busy machines both equalled the wanted capacity for 5 s in a row.

        A worker that claimed a task when it was asked to stop as an idle one leaves after that task, and tasks of a
        level have no end: it serves like any other. Its claim makes no other worker wanted, but keeps as many from
        being stopped (`accounting.protected`): those may be idle beside it.
        """
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
                kept = max(0, pool["claimed"] - pool["wanted"])
                if 0 <= pool["serving"] + pool["leaving"] - wanted <= kept and machines == wanted:
                    since.setdefault(pool["id"], now)
                    if now - since[pool["id"]] >= MET_SECONDS:
                        done.add(pool["id"])
                else:
                    since.pop(pool["id"], None)
                    done.discard(pool["id"])
            await asyncio.sleep(0.2)
        for pool in pools:
            if pool["id"] not in done:
                print(f"  not at target: {pool} busy={state.get(pool['id'])} wanted={self.levels[pool['id']]}")
        return done


async def e2e(supervisor: Supervisor, planned: Plan) -> int:
    """Run a plan on a new deployment; return the exit code."""
    with temporary_folder() as folder:
        deployment = Deployment(supervisor, folder, speed=SPEED, seconds=SECONDS)
        try:
            await deployment.start()
            await deployment.apply(declaration(planned))
            await deployment.call(
                "POST",
                "simulator",
                "/scenario",
                {"seed": planned.seed, "speed": SPEED, "accounts": {"*": {}}, "visibility_seconds": 5},
            )
            print(f"started; SEED={planned.seed} CHANGES={planned.changes} POOLS={planned.pools}", flush=True)
            work = Run(supervisor, deployment, planned)
            await asyncio.gather(work.change(), work.kill(), work.pause())
            met = await work.pools_at_target(within_seconds=MET_WITHIN_SECONDS)
            await asyncio.sleep(0 if len(met) == planned.pools else 1)
            await asyncio.sleep(max(0.0, deployment.settle_seconds - MET_SECONDS))
            found = await evidence.gather(
                ledger_path=deployment.ledger,
                kafka=deployment.kafka,
                prefix=deployment.prefix,
                database_url=deployment.database_url,
                settle_seconds=deployment.settle_seconds,
            )
            return summarise(planned, work, met, path_check.judge(found))
        finally:
            keep(folder)
            await supervisor.stop()
            await deployment.remove()


def summarise(planned: Plan, work: Run, met: set[str], report: path_check.Report) -> int:
    """Print the results; return 1 if there are problems."""
    problems = list(report.problems)
    if len(met) < planned.pools:
        problems.append(f"{planned.pools - len(met)} pools did not reach their wanted capacity")
    if any(busy < IN_FLIGHT_MIN for busy in work.in_flight):
        problems.append(f"a kill happened with fewer than {IN_FLIGHT_MIN} in flight: {work.in_flight}")
    for name, (peak, cap) in report.peaks.items():
        if name.startswith("account"):
            print(f"  {name}: at most {peak} at once, {cap} allowed")
    print(f"  {report.line()}")
    for problem in problems:
        print(f"  PROBLEM {problem}")
    busy = ",".join(map(str, work.in_flight))
    print(
        f"met {len(met)}/{planned.pools}, changes {work.changed}, kills {len(work.in_flight)} (in flight {busy}), "
        f"doubled {report.doubled}, lost {report.lost}, dead {report.dead}"
    )
    return 1 if problems else 0


def main() -> int:
    try:
        planned = plan(dict(os.environ))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return run(lambda supervisor: e2e(supervisor, planned))


if __name__ == "__main__":
    sys.exit(main())
