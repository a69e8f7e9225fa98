"""Callers that send too much, beside those who do not (`make flood`): SEED, BEFORE=COMMIT.

Attackers at nice 19 send the same requests at the same rates to an empty server first, then to the services, while
people read, machines register, a worker reports and a holder renews its lease. Prints how long the answers to these
took in both cases. Exits with 1 unless people's reads and registrations take at most twice as long, none of them is
answered 429, half requests are closed, and the services have grown by little. With BEFORE the services are those of
that commit.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from slipway_common.base import ids
from slipway_common.base.clock import monotonic_seconds
from slipway_local.servers.child import Child
from slipway_local.servers.ports import free_ports
from slipway_local.servers.supervisor import Supervisor, run
from tests.attack.earlier import EARLIER, run_earlier
from tests.attack.target import hash_of, is_open
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, add_tasks, fetch
from tests.flood.attackers import HALF_SECONDS_MAX, Done, Plan
from tests.flood.legitimate import HEARTBEATS, READS, REGISTRATIONS, RENEWALS, Figures, Legitimate, Machine

SPEED: Final = 4.0
CONTROL_SECONDS: Final = 12.0
ATTACK_SECONDS: Final = 18.0
SETTLE_SECONDS: Final = 2.0
"""Time at the beginning of an attack that is not measured: buckets begin full."""
HALVES: Final = 200
MACHINES: Final = 8
RATIO_MAX: Final = 2.0
GROWTH_BYTES_MAX: Final = 50_000_000
SERVICES: Final = ("provisioner", "lease-broker")
LAUNCHED: Final = """
SELECT id::text AS worker_id, batch_id::text AS batch_id, instance_id FROM provisioner.worker
WHERE instance_id IS NOT NULL AND registered_at IS NULL ORDER BY id"""


class Flood:
    """A deployment with machines that have not registered, two workers and a lease, and an empty server beside it."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.deployment = harness.new_deployment()
        self._empty: Child | None = None
        self._plan: Plan
        self.legitimate: Legitimate

    async def start(self) -> None:
        deployment, harness = self.deployment, self._harness
        await deployment.start()
        account: dict[str, Any] = {"url": deployment.url("simulator")} if "url" in Account.__struct_fields__ else {}
        names = ["acc", "acc-2", "acc-3", "acc-4"]
        declared = declaration(
            SPEED,
            {name: Account(**account) for name in names},
            {f"builds{number or ''}": Pool(accounts=[name], image=name) for number, name in enumerate(names)},
        )
        await harness.play(deployment, declared, boot_seconds_median=100_000.0)
        for number in range(len(names)):
            await add_tasks(deployment, f"builds{number or ''}", MACHINES, 100_000.0)

        async def launched() -> bool:
            return len(await fetch(deployment, LAUNCHED)) >= MACHINES

        await harness.until(launched, f"{MACHINES} machines boot")
        rows = await fetch(deployment, LAUNCHED)
        machines = [Machine(row["batch_id"], row["instance_id"]) for row in rows]
        workers: list[tuple[str, str]] = []
        for machine in machines[:2]:
            reporter = Legitimate(deployment, [machine], "", "", {})
            workers.append(await reporter.enrolled())
        monitor = ids.new_secret()
        entry = {"name": "monitor", "sha256": hash_of(monitor), "scopes": ["demand:write:builds"]}
        with deployment.tokens_file.open("a") as file:
            file.write(f"- {msgspec.json.encode(entry).decode()}\n")
        body = {"request_id": "flood", "hold_seconds": 600}
        lease = await deployment.call("POST", "lease-broker", "/lease-pools/acc-4/leases", body)
        (worker_id, token), (attacked_id, attacked_token) = workers
        self.legitimate = Legitimate(deployment, machines[2:], worker_id, token, lease)
        (port,) = free_ports(1)
        self._empty_port = port
        self._empty = Child("empty", [sys.executable, "-m", "tests.flood.empty", str(port)], cwd=Path.cwd())
        self._empty.start()
        while not await is_open(port):
            await asyncio.sleep(0.05)
        self._plan = Plan(
            provisioner_port=deployment.ports["provisioner"],
            broker_port=deployment.ports["lease-broker"],
            worker_id=attacked_id,
            worker_token=attacked_token,
            monitor_token=monitor,
            seed=harness.seed,
            seconds=ATTACK_SECONDS + SETTLE_SECONDS,
            half_requests=HALVES,
        )

    async def control(self) -> tuple[Figures, Done]:
        """The same requests to the empty server."""
        port = self._empty_port
        return await self._beside(
            msgspec.structs.replace(
                self._plan,
                provisioner_port=port,
                broker_port=port,
                seconds=CONTROL_SECONDS + SETTLE_SECONDS,
                half_requests=0,
            ),
            CONTROL_SECONDS,
        )

    async def attack(self) -> tuple[Figures, Done]:
        return await self._beside(self._plan, ATTACK_SECONDS)

    async def _beside(self, plan: Plan, seconds: float) -> tuple[Figures, Done]:
        folder = self.deployment.folder
        given, found = folder / "plan.json", folder / "done.json"
        given.write_bytes(msgspec.json.encode(plan))
        argv: list[str | Path] = ["nice", "-n", "19", sys.executable, "-m", "tests.flood.attackers", given, found]
        attackers = Child("attackers", argv, cwd=Path.cwd())
        attackers.start()
        try:
            await asyncio.sleep(SETTLE_SECONDS)
            figures = await self.legitimate.measure(seconds)
            await attackers.wait()
        finally:
            await attackers.kill()
        return figures, msgspec.json.decode(found.read_bytes(), type=Done)

    async def stop(self) -> None:
        if self._empty is not None:
            await self._empty.kill()

    def memory_bytes(self) -> int:
        """Resident memory of the services."""
        pids = [self._harness.supervisor[name].pid for name in SERVICES]
        return sum(resident_bytes(pid) for pid in pids if pid is not None)


def resident_bytes(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


async def flood(supervisor: Supervisor, seed: int) -> int:
    """Run the control and the attack, and print the figures; returns the exit code."""
    began = monotonic_seconds()
    async with Harness(supervisor, seed=seed, speed=SPEED, log=lambda text: print(text, flush=True)) as harness:
        flooded = Flood(harness)
        try:
            await flooded.start()
            await flooded.legitimate.measure(SETTLE_SECONDS)
            control, sent_beside = await flooded.control()
            before_bytes = flooded.memory_bytes()
            attacked, sent = await flooded.attack()
            grown_bytes = flooded.memory_bytes() - before_bytes
        finally:
            await flooded.stop()
    print(
        f"{sent_beside.sent / sent_beside.seconds:.0f} requests/s to the empty server, then "
        f"{sent.sent / sent.seconds:.0f} to the services, answered {dict(sorted(sent.statuses.items()))}"
    )
    return report(control, attacked, sent, grown_bytes, monotonic_seconds() - began, seed)


def report(control: Figures, attacked: Figures, sent: Done, grown_bytes: int, seconds: float, seed: int) -> int:
    """Print the figures with their bounds; returns the exit code."""
    claims: dict[str, bool] = {}
    for kind in (READS, REGISTRATIONS, HEARTBEATS, RENEWALS):
        before, after = control.p99_ms(kind), attacked.p99_ms(kind)
        numbers = f"of {control.number(kind)} and {attacked.number(kind)} answers"
        text = f"{kind:<15} p99 {before:6.1f} ms, then {after:6.1f} ms {numbers}: × {after / before:.2f}"
        if kind in (READS, REGISTRATIONS):
            claims[f"{text} ≤ {RATIO_MAX:g}"] = after <= RATIO_MAX * before
        else:
            print(f"        {text}")
    refused = {kind: statuses for kind, statuses in attacked.refused.items() if statuses}
    limited = sum(status == 429 for statuses in attacked.refused.values() for status in statuses)
    claims[f"legitimate 429: {limited}; refused otherwise {refused or 0}"] = not refused
    closed = f"{sent.half_requests} half requests closed after {sent.half_seconds_max:.1f} s at most"
    claims[f"{closed}, ≤ {HALF_SECONDS_MAX:g}"] = sent.half_seconds_max < HALF_SECONDS_MAX
    grown = f"services grew by {grown_bytes / 1e6:.1f} MB ≤ {GROWTH_BYTES_MAX / 1e6:.0f}"
    claims[grown] = grown_bytes <= GROWTH_BYTES_MAX
    commit = os.environ.get(EARLIER)
    print(f"{seconds:.0f} s, SEED={seed}" + (f", at {commit}" if commit else ""))
    for text, holds in claims.items():
        print(f"{'ok     ' if holds else 'FALSE  '} {text}")
    print(f"{sum(claims.values())} of {len(claims)} hold")
    return 0 if commit or all(claims.values()) else 1


def main(environment: Mapping[str, str], packages: Sequence[str] = ("attack", "flood")) -> int:
    if before := environment.get("BEFORE"):
        return run_earlier("tests.flood", packages, before, environment)
    try:
        seed = int(environment.get("SEED") or 1)
    except ValueError:
        print("SEED has to be an integer", file=sys.stderr)
        return 2
    return run(partial(flood, seed=seed))


if __name__ == "__main__":
    sys.exit(main(os.environ))
