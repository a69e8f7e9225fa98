"""`make e2e-windows`: check that launches stay within windows with stale weights, without a calculator, by 3 replicas.

The whole system runs as processes on a simulated cloud with seeded outages, an exhausted quota and an image that never
registers. A mirror delays the calculator's weights by a minute of product time; for some seconds the calculator is
paused. The run is judged by the simulator's ledger and the copied records. Then eight planners are killed at commits
(`planners.py`). SEED=5; ONLY=services or planners for one of the two.
"""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, Final

import asyncpg
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from slipway_api.events.scopes import capacity_key, credential_key, image_key, image_of_provider, quota_key
from slipway_api.events.topics import LAUNCH_CONFIG_WEIGHT, SERVICE_HEARTBEAT
from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.ids import digest, new_id
from slipway_common.declaration.identity import canonical_body, config_name
from slipway_common.declaration.models import Declaration
from slipway_common.messaging.envelope import decode_data
from slipway_local.demo.deployment import PARTITIONS, PRODUCT_SECONDS, Deployment
from slipway_local.demo.program import keep
from slipway_local.servers.supervisor import Supervisor, run
from slipway_simulator import facts, ledger
from tests.e2e import planners
from tests.e2e.mirror import Copied, Mirror
from tests.e2e.windows_judge import ConfigKeys, Report, Times, Visible, judge
from tests.support.folders import temporary_folder

SPEED: Final = 12.0
REGION: Final = "sim-1"
DURATION_SECONDS: Final = 40.0
PRODUCT: Final = DURATION_SECONDS * SPEED
REPLICAS: Final = 3
LATE_SECONDS: Final = 60.0  # of product time
ROUNDED_SECONDS: Final = 0.1  # of product time: Kafka timestamps are in milliseconds, and the run is fast
# Failing boots time out within the run; calls have a long timeout, so that a busy machine fails none.
SECONDS: Final = {"boot_timeout_seconds": 240.0, "call_timeout_seconds": 240.0, "idle_timeout_seconds": 60.0}
# Heartbeats are in real seconds; the calculator is paused for longer than it takes to be reported unavailable.
HEARTBEAT_SECONDS: Final = 1.0
UNAVAILABLE_SECONDS: Final = 5.0
PAUSE: Final = (0.5, UNAVAILABLE_SECONDS + 4.0)  # start as a fraction of the run, and seconds
READING_SECONDS: Final = 0.5  # from being readable to being read and stored by a replica on an idle machine
LAUNCHES_MIN: Final = 200  # 350 to 470 by the speed of the machine; each of REQUIRED_KINDS must be full as well
FAILURES_MIN: Final = 50
METRICS: Final = ("slipway_decisions_total", "slipway_provider_calls_total")
REQUIRED_KINDS: Final = ("config launch", "config boot", "image boot", "quota")
DECIDED: Final = """
SELECT b.id::text AS batch, extract(epoch FROM min(w.requested_at))::float8 AS decided
FROM provisioner.launch_batch b JOIN provisioner.worker w ON w.batch_id = b.id GROUP BY b.id"""

# Pool → launch configs as (account, zone, instance type, image), and demand.
SPREAD: Final = [
    ("acc-a", "zone-a", "m5", "good-1"),
    ("acc-a", "zone-b", "m5", "good-1"),
    ("acc-b", "zone-c", "m5", "good-1"),
    ("acc-b", "zone-d", "m5", "good-1"),
]
METERED: Final = [("acc-q", "zone-e", "c5.large", "good-3"), ("acc-q", "zone-f", "c5.large", "good-3")]
ALONE: Final = [("acc-b", "zone-g", "m5", "good-2")]
LATER: Final = [("acc-a", "zone-h", "m5", "good-1")]
BROKEN: Final = [("acc-a", "zone-i", "m5", "bad-1"), ("acc-b", "zone-j", "m5", "bad-1")]
POOLS: Final[dict[str, tuple[list[tuple[str, str, str, str]], dict[str, Any]]]] = {
    "spread-1": (SPREAD, {"rate_per_minute": 9, "initial_burst": 12, "burst_size": 14}),
    "spread-2": (SPREAD, {"rate_per_minute": 9, "initial_burst": 12, "burst_size": 14}),
    "spread-3": (SPREAD, {"rate_per_minute": 9, "initial_burst": 12, "burst_size": 14}),
    "metered": (METERED, {"rate_per_minute": 6, "initial_burst": 12, "burst_size": 9}),
    "alone": (ALONE, {"rate_per_minute": 3, "initial_burst": 16, "burst_size": 4}),
    # Its image is proven by then, so that its own first boot window is what limits it.
    "later": (
        LATER,
        {"kind": "arrivals", "arrivals": [[at, 30.0] for at in (160.0, 250.0, 340.0, 430.0) for _ in range(60)]},
    ),
    "broken": (BROKEN, {"rate_per_minute": 2, "initial_burst": 12, "burst_size": 3}),
}


class Work(msgspec.Struct, frozen=True):
    """Numbers of decisions and of create calls of one replica."""

    decisions: int
    calls: int


def declaration() -> Declaration:
    """Pools whose configs share images and quotas, in accounts with high limits: only windows limit launches."""
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
                    "region": REGION,
                    "credential": "none",
                    "identity": name,
                    "lease_pool": name,
                }
                for name in accounts
            ],
            "worker_pools": [
                {
                    "id": pool,
                    "max_capacity": 60,
                    "launch_configs": [
                        {
                            "name": f"{pool}-{zone}",
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


def config_keys() -> dict[str, ConfigKeys]:
    """Pool and shared keys of the one revision of each launch config."""
    return {
        revision_id(config_name(pool, config), canonical_body(config, REGION)): ConfigKeys(
            pool.id,
            image_key(image_of_provider("simulated", config.image)),
            quota_key(config.account, REGION, config.instance_type),
            credential_key(config.account),
            capacity_key(config.account, REGION, config.zone, config.instance_type),
        )
        for pool in declaration().worker_pools or ()
        for config in pool.launch_configs
    }


def revision_id(name: str, body: bytes) -> str:
    """Id of the revision of a launch config with this body."""
    return f"{name}@{digest(body)[:6]}"


def scenario(seed: int) -> dict[str, Any]:
    """Scenario with outages at seeded times: of zones, of all zones, and of one while the calculator is paused."""
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
    bursty = {"kind": "bursty", "burst_every_seconds": 100, "task_seconds_median": 30, "until_seconds": PRODUCT}
    pools = {pool: demand if "kind" in demand else bursty | demand for pool, (_, demand) in POOLS.items()}
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
            fault("zone", zones[0], PAUSE[0] + 0.03, PAUSE[0] + 0.2),
            *(fault("zone", zone, 0.75 + 0.03 * place, 1.0) for place, zone in enumerate(zones)),
        ],
    }


async def pause(supervisor: Supervisor, began: float) -> None:
    """Pause the calculator for PAUSE[1] seconds."""
    await asyncio.sleep(max(0.0, began + PAUSE[0] * DURATION_SECONDS - monotonic_seconds()))
    supervisor.pause("weight-calculator")
    print(f"{monotonic_seconds() - began:6.1f} s  weight-calculator paused for {PAUSE[1]:g} s", flush=True)
    try:
        await asyncio.sleep(PAUSE[1])
    finally:
        supervisor.resume("weight-calculator")
    print(f"{monotonic_seconds() - began:6.1f} s  weight-calculator resumed", flush=True)


async def windows(supervisor: Supervisor, seed: int) -> int:
    """Run on a new deployment; return the exit code."""
    with temporary_folder() as folder:
        inside = f"mirrored-{new_id()[-12:]}."
        deployment = Deployment(
            supervisor,
            folder,
            speed=SPEED,
            seconds=SECONDS,
            environment={
                "weight-calculator": {
                    "SLIPWAY_TOPIC_PREFIX": inside,
                    "SLIPWAY_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS),
                },
                "provisioner": {"SLIPWAY_UNAVAILABLE_AFTER_SECONDS": str(UNAVAILABLE_SECONDS)},
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
                await deployment.apply(declaration())
                await deployment.call("POST", "simulator", "/scenario", scenario(seed))
                print(f"started; SEED={seed} SPEED={SPEED:g}, {REPLICAS} provisioners", flush=True)
                began = monotonic_seconds()
                await asyncio.gather(pause(supervisor, began), asyncio.sleep(DURATION_SECONDS))
                until = utc_now().timestamp()
                decided = await decisions(deployment.database_url)
                work = {name: await work_of(deployment, name) for name in ("provisioner", *more)}
            played = [fact for fact in ledger.read(deployment.ledger) if fact.at <= until]
            return summarise(played, mirror.copied, judged(played, mirror.copied, decided), decided, work)
        finally:
            keep(folder)
            await supervisor.stop()
            await deployment.remove()


async def decisions(database_url: str) -> dict[str, float]:
    """Time at which each batch was decided, by batch ID. Everything else about calls comes from the ledger."""
    db = await asyncpg.connect(database_url)
    try:
        return dict(await db.fetch(DECIDED))
    finally:
        await db.close()


async def work_of(deployment: Deployment, name: str) -> Work:
    """Decisions and calls of one replica, by its metrics."""
    headers = {"Authorization": f"Bearer {deployment.token}"}
    answer = await deployment.http.get(f"{deployment.url(name)}/metrics", headers=headers)
    text = answer.raise_for_status().text
    counted = Counter[str]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            counted[sample.name] += int(sample.value) if sample.name in METRICS else 0
    return Work(*(counted[each] for each in METRICS))


def judged(played: list[facts.Fact], copied: list[Copied], decided: Mapping[str, float]) -> Report:
    records = [(c.at, event(c)) for c in copied if c.topic is LAUNCH_CONFIG_WEIGHT]
    return judge(
        played,
        [Visible(at, record) for at, record in records if record is not None],
        [c.at for c in copied if c.topic is SERVICE_HEARTBEAT],
        config_keys(),
        Times(
            reading=READING_SECONDS,
            boot=SECONDS["boot_timeout_seconds"] / SPEED,
            unavailable=UNAVAILABLE_SECONDS,
            attempt=PRODUCT_SECONDS["provisioner"]["unavailable_attempt_seconds"] / SPEED,
        ),
        decided=decided,
    )


def lags(played: list[facts.Fact], decided: Mapping[str, float]) -> list[float]:
    """Seconds from each decision to its call, ascending."""
    return sorted(f.at - decided[f.batch] for f in played if isinstance(f, facts.Call) and f.batch in decided)


def event(record: Copied) -> Any:
    return decode_data(dict(record.headers)["ce_type"].decode(), record.value)


def summarise(
    played: list[facts.Fact],
    copied: list[Copied],
    report: Report,
    decided: Mapping[str, float],
    work: Mapping[str, Work],
) -> int:
    began = next(fact.at for fact in played if isinstance(fact, facts.ScenarioLoaded))
    taken = lags(played, decided)
    late = [(c.at - c.written) * SPEED for c in copied if c.topic is LAUNCH_CONFIG_WEIGHT]
    beats = sorted(c.written for c in copied if c.topic is SERVICE_HEARTBEAT)
    heartbeat_gap = max(b - a for a, b in pairwise(beats))
    print(f"  {len(late)} weight records were {min(late):.0f} to {max(late):.0f} s of product time late")
    for name, each in work.items():
        print(f"  {name} made {each.decisions} decisions and {each.calls} calls")
    print(f"  longest interval between heartbeats of the calculator: {heartbeat_gap:.1f} s")
    print(f"  from a decision to its call: median {taken[len(taken) // 2]:.2f} s, maximum {taken[-1]:.2f} s")
    for kind in REQUIRED_KINDS:
        print(f"  {kind} window full {report.reached.get(kind, 0)} times, highest level {report.peaks[kind]}")
    print(f"  {report.probes} probes by permit and {report.attempts} attempts without a calculator, outside any window")
    short = missing(report, heartbeat_gap=heartbeat_gap, late=min(late), work=work)
    for text in short:
        print(f"  PROBLEM {text}")
    for violation in report.violations:
        print(f"  VIOLATION {violation.at - began:6.2f} s  {violation.config_id}: {violation.text}")
    print(f"{len(report.violations)} violations: {report.launches} launches, {report.failures} failures")
    return 1 if report.violations or short else 0


def missing(report: Report, *, heartbeat_gap: float, late: float, work: Mapping[str, Work]) -> list[str]:
    """Conditions without which the run is no evidence, however few violations it has.

    `heartbeat_gap` is the longest interval between heartbeats in seconds, `late` the smallest delay of a weight in
    product time.
    """
    short = [f"the {kind} window was never full" for kind in REQUIRED_KINDS if not report.reached.get(kind)]
    if heartbeat_gap <= UNAVAILABLE_SECONDS:
        short.append("the calculator was never unavailable")
    if late < LATE_SECONDS - ROUNDED_SECONDS:
        short.append(f"a weight was only {late:.1f} s of product time late; {LATE_SECONDS:g} s are required")
    if (busy := sum(each.decisions > 0 and each.calls > 0 for each in work.values())) < REPLICAS:
        short.append(f"{busy} replicas decided and launched; {REPLICAS} are required")
    for number, least, what in (
        (report.launches, LAUNCHES_MIN, "launches"),
        (report.failures, FAILURES_MIN, "failures"),
    ):
        if number < least:
            short.append(f"{number} {what}; at least {least} are required")
    return short


def main() -> int:
    try:
        seed = int(os.environ.get("SEED") or 5)
    except ValueError:
        print(f"SEED={os.environ['SEED']}: must be an integer", file=sys.stderr)
        return 2
    only = os.environ.get("ONLY", "")
    if only not in ("", "planners", "services"):
        print(f"ONLY={only}: write planners or services", file=sys.stderr)
        return 2
    plays = {"services": windows, "planners": planners.play}
    return max(run(partial(play, seed=seed)) for name, play in plays.items() if only in ("", name))


if __name__ == "__main__":
    sys.exit(main())
