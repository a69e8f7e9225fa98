"""Workers of a maximum age, in a pool of bare metal that boots for 25 minutes and in one of a cloud.

Both always have more tasks than machines. Meanwhile launching is stopped for 20 minutes, and then the zone of the bare
metal has no capacity for as long, so that its launch config trips: what could not be replaced has to stay, and no
machine may be older than its maximum age and its drain time nevertheless.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec

from slipway_api.events.alert import Alert, AlertRaised
from slipway_common.base.clock import utc_now
from slipway_local.demo.deployment import Deployment
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, Verdict, add_tasks, played, published_alerts

METAL, CLOUD = "metal", "cloud"
POOLS: Final = (METAL, CLOUD)
MAXIMUM: Final = 6
TASK_SECONDS: Final = 600.0
BOOT_SECONDS: Final = 1500.0
DEADLINES: Final[Mapping[str, Mapping[str, float]]] = {
    METAL: {"maximum_age_seconds": 4500.0, "drain_seconds": 3000.0, "registration_seconds": 3000.0},
    CLOUD: {"maximum_age_seconds": 3600.0, "drain_seconds": 3000.0},
}
FAULT_SECONDS: Final = 1200.0
LAST_SECONDS: Final = 10_800.0  # longer than any age that is allowed
ACT_SECONDS: Final = 4.0  # real: a pass over deadlines, a call, and a busy machine
TASKS: Final = 400


class Life(msgspec.Struct, kw_only=True):
    """A machine by the ledger, in real seconds. `ended_at` is None while it exists."""

    pool_id: str
    created_at: float
    ended_at: float | None = None
    drained_at: float | None = None


class Window(msgspec.Struct, frozen=True):
    """Time in which nothing could be replaced in some pools, from the answer to its begin to its end."""

    what: str
    pools: Sequence[str]
    from_at: float
    until_at: float


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    deployment = harness.new_deployment(seconds={"give_up_idle_seconds": 3000.0})
    await deployment.start()
    accounts = {name: Account(hold_seconds=6000.0, ttl_seconds=3000.0) for name in POOLS}
    pools = {
        name: Pool(
            accounts=[name],
            image=name,
            max_capacity=MAXIMUM,
            tasks_per_worker=1_000_000,
            profile="bare-metal" if name == METAL else "on-demand",
            deadlines=DEADLINES[name],
        )
        for name in POOLS
    }
    declared = declaration(harness.speed, accounts, pools)
    await harness.play(deployment, declared, images={METAL: {"boot_seconds_median": BOOT_SECONDS}}, boot_sigma=0.05)
    began = utc_now().timestamp()
    for name in POOLS:
        await add_tasks(deployment, name, TASKS, TASK_SECONDS)

    async def grown() -> bool:
        live = Counter(life.pool_id for life in lives(played(deployment)).values() if life.ended_at is None)
        return all(live[name] == MAXIMUM for name in POOLS)

    await harness.until(grown, f"both pools have {MAXIMUM} machines")
    until_age = 0.9 * DEADLINES[CLOUD]["maximum_age_seconds"] - (utc_now().timestamp() - began) * harness.speed
    await harness.product_seconds(max(0.0, until_age))
    windows = [await stopped(harness, deployment)]
    trip = await tripped(harness, deployment, began)
    windows += [trip] if trip is not None else []
    await harness.product_seconds(LAST_SECONDS - (utc_now().timestamp() - began) * harness.speed)
    starved = await published_alerts(deployment, is_starved)
    return judge(played(deployment), windows, len(starved), now=utc_now().timestamp(), speed=harness.speed)


async def stopped(harness: Harness, deployment: Deployment) -> Window:
    """Stop launching, as a person does."""
    reason = {"reason": "drill", "scope": "all"}
    await deployment.call("POST", "provisioner", "/stop-launching", reason)
    from_at = utc_now().timestamp()
    harness.log("launching is stopped")
    await harness.product_seconds(FAULT_SECONDS)
    until_at = utc_now().timestamp()
    await deployment.call("POST", "provisioner", "/start-launching", reason)
    return Window("launch stop", POOLS, from_at, until_at)


async def tripped(harness: Harness, deployment: Deployment, began: float) -> Window | None:
    """Take all capacity of the bare metal, until its launch config is healthy again."""
    window = f"zone-{METAL}"  # the name of the zone is that of its fault
    await deployment.call("POST", "simulator", "/faults", {"name": window})

    while await health(deployment) == "healthy":
        if utc_now().timestamp() > began + LAST_SECONDS / harness.speed:
            return None  # nothing has been launched, since nobody has left
        await harness.product_seconds(60)
    harness.log(f"the launch config of {METAL} is tripped")
    from_at = utc_now().timestamp()
    await harness.product_seconds(FAULT_SECONDS)
    until_at = utc_now().timestamp()
    await deployment.call("DELETE", "simulator", f"/faults/{window}")
    return Window("trip", [METAL], from_at, until_at)


async def health(deployment: Deployment) -> str:
    shown: dict[str, Any] = await deployment.call("GET", "provisioner", f"/launch-configs/{METAL}-{METAL}")
    return str(shown["health_state"])


def is_starved(alert: Alert) -> bool:
    return isinstance(alert, AlertRaised) and alert.kind == "pool-starved"


def lives(ledger: Sequence[facts.Fact]) -> dict[str, Life]:
    """Machines by their instance ids."""
    found: dict[str, Life] = {}
    for fact in ledger:
        if isinstance(fact, facts.InstanceCreated):
            found[fact.instance_id] = Life(pool_id=fact.image, created_at=fact.at)
        elif isinstance(fact, facts.DrainRequested):
            found[fact.instance_id].drained_at = fact.at
        elif isinstance(fact, facts.Terminated):
            found[fact.instance_id].ended_at = fact.at
    return found


def judge(
    ledger: Sequence[facts.Fact], windows: Sequence[Window], starved: int, *, now: float, speed: float
) -> Verdict:
    """Judge by the ages of all machines, also of those that exist. Starved pools are those with an alert."""
    machines = lives(ledger)
    interrupted = sum(isinstance(fact, facts.TaskEnded) and fact.result != "done" for fact in ledger)
    problems = [*_ages(machines, now, speed), *_left(machines, windows, speed), *_counts(machines)]
    if interrupted:
        problems.append(f"{interrupted} tasks were interrupted")
    if starved:
        problems.append(f"{starved} alerts on starved pools")
    if len(windows) < 2:
        problems.append(f"the launch config of {METAL} has never tripped: the drill proves nothing")
    generations = {name: sum(life.pool_id == name for life in machines.values()) for name in POOLS}
    if few := [name for name, number in generations.items() if number < 2 * MAXIMUM]:
        problems.append(f"not every machine of {' and '.join(few)} was replaced: the drill proves nothing")
    oldest = max(((life.ended_at or now) - life.created_at) * speed for life in machines.values())
    figures = f"{len(machines)} machines, oldest {oldest:.0f} s, interrupted {interrupted}, starved {starved}"
    return Verdict(figures, problems)


def _ages(machines: Mapping[str, Life], now: float, speed: float) -> Iterator[str]:
    for instance_id, life in machines.items():
        allowed = DEADLINES[life.pool_id]
        most = allowed["maximum_age_seconds"] + allowed["drain_seconds"]
        age = ((life.ended_at or now) - life.created_at) * speed
        if age > most + ACT_SECONDS * speed:
            yield f"{instance_id} of {life.pool_id} is {age:.0f} s old; allowed are {most:.0f}"


def _left(machines: Mapping[str, Life], windows: Sequence[Window], speed: float) -> Iterator[str]:
    """Machines that were asked to leave while nothing could replace them. Those that drained already may be told."""
    for window in windows:
        for instance_id, life in machines.items():
            at = life.drained_at
            if life.pool_id in window.pools and at is not None and window.from_at + 1.0 < at < window.until_at:
                after = (at - window.from_at) * speed
                yield f"{instance_id} of {life.pool_id} was asked to leave {after:.0f} s after the {window.what}"


def _counts(machines: Mapping[str, Life]) -> Iterator[str]:
    """Pools with more machines at a time than their maximum."""
    for name in POOLS:
        changes = [(life.created_at, 1) for life in machines.values() if life.pool_id == name]
        changes += [(life.ended_at, -1) for life in machines.values() if life.pool_id == name and life.ended_at]
        most = max(accumulate(change for _, change in sorted(changes)), default=0)
        if most > MAXIMUM:
            yield f"{most} machines of {name} at a time; its maximum is {MAXIMUM}"
