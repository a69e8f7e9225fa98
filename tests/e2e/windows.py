"""`make e2e-windows`: are windows kept while weights are old, the calculator is away, and three replicas spend them?

The whole system in processes of its own on a simulated cloud with seeded outages, an exhausted quota and an image that
never registers. The calculator stands behind a mirror, through which its weights come a minute of product time late;
for a while it is stopped. Judged from the simulator's ledger and the records that came through. SEED is the argument.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final

import asyncpg
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from slipway_common.clock import monotonic_seconds, utc_now
from slipway_common.declaration import Declaration
from slipway_common.envelope import decode_data
from slipway_common.ids import new_id
from slipway_common.scopes import credential_key, image_key, quota_key
from slipway_common.topics import LAUNCH_CONFIG_WEIGHT, SERVICE_HEARTBEAT
from slipway_local.demo import keep
from slipway_local.deployment import PARTITIONS, PRODUCT_SECONDS, Deployment
from slipway_local.guard import guard
from slipway_local.supervisor import Supervisor, run
from slipway_simulator import facts, ledger
from tests.e2e.mirror import Crossed, Mirror
from tests.e2e.windows_judge import Report, Times, Visible, Way, judge

SPEED: Final = 12.0
DURATION_SECONDS: Final = 40.0
PRODUCT: Final = DURATION_SECONDS * SPEED
REPLICAS: Final = 3
LATE_SECONDS: Final = 60.0  # of product time
ROUNDED_SECONDS: Final = 0.1  # of it too: the log's clock has milliseconds, and the run is quicker
# Boots that fail do so within the run; calls are patient, so that a busy machine cuts none off.
SECONDS: Final = {"boot_timeout_seconds": 240.0, "call_timeout_seconds": 240.0, "idle_timeout_seconds": 60.0}
# Heartbeats count in real seconds; the calculator is away for longer than it takes to notice.
HEARTBEAT_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 5.0
AWAY: Final = (0.5, SILENT_SECONDS + 4.0)  # from this part of the run on, for so many seconds
READING_SECONDS: Final = 0.5  # from being readable to being read and written down, where nothing holds a replica up
LAUNCHES_MIN: Final = 200
FAILURES_MIN: Final = 50
COUNTED: Final = ("slipway_decisions_total", "slipway_provider_calls_total")
TO_REACH: Final = ("config launch", "config boot", "image boot", "quota")
DECIDED: Final = """
SELECT b.id::text AS batch, extract(epoch FROM min(w.requested_at))::float8 AS decided
FROM provisioner.launch_batch b JOIN provisioner.worker w ON w.batch_id = b.id GROUP BY b.id"""

# Pool → launch configs as (account, zone, instance type, image), and its demand.
SPREAD: Final = [
    ("acc-a", "zone-a", "m5", "good-1"),
    ("acc-a", "zone-b", "m5", "good-1"),
    ("acc-b", "zone-c", "m5", "good-1"),
    ("acc-b", "zone-d", "m5", "good-1"),
]
METERED: Final = [("acc-q", "zone-e", "c5.large", "good-3"), ("acc-q", "zone-f", "c5.large", "good-3")]
ALONE: Final = [("acc-b", "zone-g", "m5", "good-2")]
LONELY: Final = [("acc-a", "zone-h", "m5", "good-4")]
BROKEN: Final = [("acc-a", "zone-i", "m5", "bad-1"), ("acc-b", "zone-j", "m5", "bad-1")]
POOLS: Final[dict[str, tuple[list[tuple[str, str, str, str]], dict[str, Any]]]] = {
    "spread-1": (SPREAD, {"rate_per_minute": 9, "initial_burst": 12, "burst_size": 14}),
    "spread-2": (SPREAD, {"rate_per_minute": 9, "initial_burst": 12, "burst_size": 14}),
    "spread-3": (SPREAD, {"rate_per_minute": 9, "initial_burst": 12, "burst_size": 14}),
    "metered": (METERED, {"rate_per_minute": 6, "initial_burst": 12, "burst_size": 9}),
    "alone-1": (ALONE, {"rate_per_minute": 3, "initial_burst": 16, "burst_size": 4}),
    "alone-2": (LONELY, {"rate_per_minute": 3, "initial_burst": 16, "burst_size": 4}),
    "broken": (BROKEN, {"rate_per_minute": 2, "initial_burst": 12, "burst_size": 3}),
}


class Work(msgspec.Struct, frozen=True):
    """How often a replica decided for a pool, and how often it called a provider to create workers."""

    decisions: int
    calls: int


def declaration(url: str) -> Declaration:
    """Pools whose configs share images and quotas, in accounts whose limits never bind: windows alone hold back."""
    accounts = sorted({account for configs, _ in POOLS.values() for account, _, _, _ in configs})
    return Declaration.model_validate(
        {
            "version": 1,
            "lease_pools": [
                {
                    "id": name,
                    "limit": 1000,
                    "hold_seconds": 3600 / SPEED,
                    "ttl_seconds": 1200 / SPEED,
                    "reserve_seconds": 800 / SPEED,
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
                    "id": pool,
                    "max_capacity": 60,
                    "launch_configs": [
                        {
                            "id": f"{pool}-{zone}",
                            "account": account,
                            "zone": zone,
                            "instance_type": kind,
                            "image": image,
                            "settings": {"tasks_per_worker": 1},
                        }
                        for account, zone, kind, image in configs
                    ],
                }
                for pool, (configs, _) in POOLS.items()
            ],
        }
    )


def ways() -> dict[str, Way]:
    return {
        f"{pool}-{zone}": Way(pool, image_key(image), quota_key(account, "sim-1", kind), credential_key(account))
        for pool, (configs, _) in POOLS.items()
        for account, zone, kind, image in configs
    }


def scenario(seed: int) -> dict[str, Any]:
    """Outages at seeded times: of zones, of all of them, and of one while nobody folds failures."""
    rng = Random(seed)

    def fault(name: str, arg: str, begin: float, end: float) -> dict[str, Any]:
        shift = rng.uniform(-0.02, 0.02)
        return {
            "name": name,
            "arg": arg,
            "from_seconds": max(0.0, begin + shift) * PRODUCT,
            "until_seconds": (end + shift) * PRODUCT,
        }

    zones = rng.sample(["zone-a", "zone-b", "zone-c", "zone-d"], 4)
    pools = {
        pool: {"kind": "bursty", "burst_every_seconds": 100, "task_seconds_median": 30, "until_seconds": PRODUCT}
        | demand
        for pool, (_, demand) in POOLS.items()
    }
    return {
        "seed": seed,
        "speed": SPEED,
        "pools": pools,
        "accounts": {"*": {}},
        "visibility_seconds": 5,
        "boot_seconds_median": 80,
        "faults": [
            fault("bad-image", "bad-1", 0.0, 0.45),
            fault("quota", "acc-q", 0.0, 0.1),
            *(fault("zone", zone, 0.0, 0.08) for zone in zones[2:]),
            *(fault("zone", zone, 0.18 + 0.03 * place, 0.42) for place, zone in enumerate(zones)),
            fault("zone", zones[0], AWAY[0] + 0.03, AWAY[0] + 0.2),
            *(fault("zone", zone, 0.75 + 0.03 * place, 1.0) for place, zone in enumerate(zones)),
        ],
    }


async def away(supervisor: Supervisor, began: float) -> None:
    """Stop the calculator for a while."""
    await asyncio.sleep(max(0.0, began + AWAY[0] * DURATION_SECONDS - monotonic_seconds()))
    supervisor.pause("weight-calculator")
    print(f"{monotonic_seconds() - began:6.1f} s  weight-calculator stopped for {AWAY[1]:g} s", flush=True)
    try:
        await asyncio.sleep(AWAY[1])
    finally:
        supervisor.resume("weight-calculator")
    print(f"{monotonic_seconds() - began:6.1f} s  weight-calculator goes on", flush=True)


async def windows(supervisor: Supervisor, seed: int) -> int:
    folder = Path(tempfile.mkdtemp(prefix="slipway-"))
    guard().remove(folder)
    inside = f"mirrored-{new_id()[-12:]}."
    deployment = Deployment(
        supervisor,
        folder,
        speed=SPEED,
        seconds=SECONDS,
        environment={
            "weight-calculator": {"SLIPWAY_TOPIC_PREFIX": inside, "SLIPWAY_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS)},
            "provisioner": {"SLIPWAY_SILENT_AFTER_SECONDS": str(SILENT_SECONDS)},
        },
    )
    try:
        await deployment.start()
        more = await deployment.replicate("provisioner", REPLICAS - 1)
        mirror = Mirror(
            deployment.kafka,
            service="weight-calculator",
            outside=deployment.prefix,
            inside=inside,
            late={LAUNCH_CONFIG_WEIGHT: LATE_SECONDS / SPEED},
        )
        async with mirror.running(PARTITIONS):
            await deployment.apply(declaration(deployment.url("simulator")))
            await deployment.call("POST", "simulator", "/scenario", scenario(seed))
            print(f"started; SEED={seed} SPEED={SPEED:g}, {REPLICAS} provisioners", flush=True)
            began = monotonic_seconds()
            await asyncio.gather(away(supervisor, began), asyncio.sleep(DURATION_SECONDS))
            until = utc_now().timestamp()
            decided = await decisions(deployment.database_url)
            work = {name: await done(deployment, name) for name in ("provisioner", *more)}
        played = [fact for fact in ledger.read(deployment.ledger) if fact.at <= until]
        return summarise(played, mirror.crossed, judged(played, mirror.crossed, decided), decided, work)
    finally:
        keep(folder)
        await supervisor.stop()
        await deployment.remove()
        shutil.rmtree(folder, ignore_errors=True)


async def decisions(database_url: str) -> dict[str, float]:
    """When each call's batch was decided. What a call was, the ledger says; this says only since when it was meant."""
    db = await asyncpg.connect(database_url)
    try:
        return dict(await db.fetch(DECIDED))
    finally:
        await db.close()


async def done(deployment: Deployment, name: str) -> Work:
    """What one replica has done, by its own count."""
    told = (await deployment.http.get(f"{deployment.url(name)}/metrics")).raise_for_status().text
    counted = Counter[str]()
    for family in text_string_to_metric_families(told):
        for sample in family.samples:
            counted[sample.name] += int(sample.value) if sample.name in COUNTED else 0
    return Work(*(counted[each] for each in COUNTED))


def judged(played: list[facts.Fact], crossed: list[Crossed], decided: Mapping[str, float]) -> Report:
    records = [(c.at, event(c)) for c in crossed if c.topic is LAUNCH_CONFIG_WEIGHT]
    return judge(
        played,
        [Visible(at, record) for at, record in records if record is not None],
        [c.at for c in crossed if c.topic is SERVICE_HEARTBEAT],
        ways(),
        Times(
            reading=READING_SECONDS,
            boot=SECONDS["boot_timeout_seconds"] / SPEED,
            silent=SILENT_SECONDS,
            attempt=PRODUCT_SECONDS["provisioner"]["silent_attempt_seconds"] / SPEED,
        ),
        decided=decided,
    )


def lags(played: list[facts.Fact], decided: Mapping[str, float]) -> list[float]:
    """From each decision to its call, ascending."""
    return sorted(f.at - decided[f.batch] for f in played if isinstance(f, facts.Call) and f.batch in decided)


def event(record: Crossed) -> Any:
    return decode_data(dict(record.headers)["ce_type"].decode(), record.value)


def summarise(
    played: list[facts.Fact],
    crossed: list[Crossed],
    report: Report,
    decided: Mapping[str, float],
    work: Mapping[str, Work],
) -> int:
    began = next(fact.at for fact in played if isinstance(fact, facts.ScenarioLoaded))
    taken = lags(played, decided)
    late = [(c.at - c.written) * SPEED for c in crossed if c.topic is LAUNCH_CONFIG_WEIGHT]
    beats = sorted(c.written for c in crossed if c.topic is SERVICE_HEARTBEAT)
    silent = max(b - a for a, b in pairwise(beats))
    print(f"  {len(late)} weight records came {min(late):.0f} to {max(late):.0f} demo seconds late")
    for name, each in work.items():
        print(f"  {name} decided {each.decisions} times and called {each.calls} times")
    print(f"  the longest time without a heartbeat of the calculator was {silent:.1f} s")
    print(f"  from a decision to its call: {taken[len(taken) // 2]:.2f} s in the middle, {taken[-1]:.2f} s at most")
    for kind in TO_REACH:
        print(f"  {kind} window reached {report.reached.get(kind, 0)} times, highest level {report.peaks[kind]}")
    print(f"  {report.probes} probes by permit and {report.attempts} attempts without a calculator fit no window")
    short = missing(report, silent=silent, late=min(late), work=work)
    for text in short:
        print(f"  PROBLEM {text}")
    for violation in report.violations:
        print(f"  VIOLATION {violation.at - began:6.2f} s  {violation.config_id}: {violation.what}")
    print(f"{len(report.violations)} violations: {report.launches} launches, {report.failures} failures")
    return 1 if report.violations or short else 0


def missing(report: Report, *, silent: float, late: float, work: Mapping[str, Work]) -> list[str]:
    """Without what a run shows nothing, however few violations: `silent` is the calculator's longest silence in
    seconds, `late` the demo seconds by which each weight was late at least."""
    short = [f"the {kind} window was never reached" for kind in TO_REACH if not report.reached.get(kind)]
    if silent <= SILENT_SECONDS:
        short.append("the calculator was never silent")
    if late < LATE_SECONDS - ROUNDED_SECONDS:
        short.append(f"a weight was only {late:.1f} demo seconds late, not {LATE_SECONDS:g}")
    if (busy := sum(each.decisions > 0 and each.calls > 0 for each in work.values())) < REPLICAS:
        short.append(f"{busy} replicas decided and launched, not {REPLICAS}")
    for number, least, what in (
        (report.launches, LAUNCHES_MIN, "launches"),
        (report.failures, FAILURES_MIN, "failures"),
    ):
        if number < least:
            short.append(f"{number} {what}; at least {least}, or the run shows nothing")
    return short


def main() -> int:
    try:
        seed = int(os.environ.get("SEED") or 5)
    except ValueError:
        print(f"SEED={os.environ['SEED']}: a whole number", file=sys.stderr)
        return 2
    return run(lambda supervisor: windows(supervisor, seed))


if __name__ == "__main__":
    sys.exit(main())
