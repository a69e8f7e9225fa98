"""One seeded history: faults, commands and tasks on a deployment, which settles once they end.

Faults are duplicates, reordering, crashes at commits, skewed clocks, lost replies, a zone outage, throttles, slow
boots, launch stops, a lease-broker that is cut off from Kafka, reports of workers that come again or are made up, and
the outages of outages.py; commands are those of commands.py.
"""

import traceback
from collections import Counter
from collections.abc import Coroutine
from hashlib import sha256
from random import Random
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.lifecycle import LIVE
from slipway_api.events.topics import WORKER_LIFECYCLE
from slipway_api.events.worker import WorkerStopping
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.ageing import OVERDUE, REASON
from slipway_provisioner.store import usage
from slipway_provisioner.store.columns import states
from slipway_simulator.facts import Reply
from slipway_simulator.scenario import Scenario, decode
from tests.simulation.commands import MISSING_IMAGE, SECOND_ACCOUNT
from tests.simulation.databases import SERVICES
from tests.simulation.deployment import COUNTS, Deployment, deployment_on
from tests.simulation.invariants import LIMIT, MAX_CAPACITY, Checker, judge
from tests.simulation.machines import ANOTHER_TASK
from tests.simulation.outages import Outages
from tests.simulation.outside import as_received

ALL_FAULTS: Final = frozenset(
    {*(f"{name} killed" for name in SERVICES), "reply lost", "call refused", "repeated", "cut off"}
    | {"lost lease event", "darkness", "dead account", "retired", "older database", "second deployment"}
    | {"set clocks", "call accepted", "report again", "made-up claim", "stuck machine", "old machine"}
)
ALL_COMMANDS: Final = frozenset(
    {"roll-out natural", "roll-out rolling", "roll-out now", "rollback", "removal", "declaration again", "pause"}
    | {"maximum age"}
)
SHORT_LIVES_EVERY: Final = 4
SHORT_LIVES: Final = {
    "registration_seconds": 59.0,
    "idle_seconds": 50.0,
    "credential_seconds": 60.0,
    "drain_seconds": 15.0,
}
"""Deadlines of machines in every so many histories: they have to boot soon, and to leave soon after they have."""
FAULTS: Final = (
    "lost-reply:0.3,zone-b:60s-240s,throttle:250s-330s,slow-boot:30:350s-450s,ignore-token:450s-600s,zone-a:600s-700s"
)
TASKS: Final = 32
STEPS: Final = 450
ROUND_SECONDS: Final = (20.0, 30.0)
"""Time between two rounds of all steps while a history settles: after one in which the cloud had something to do, and
after another one."""
DRAIN_ROUND_SECONDS: Final = 90.0
"""Time between two rounds once all tasks are done: only time ends the drains and leases that are left."""
SETTLED_WITHIN: Final = 120  # rounds: a boot that times out and a drain of ten minutes fit in
CUT_OFF_EVERY: Final = 3
CUT_OFF_SECONDS: Final = (300.0, 900.0)  # the ttl of a lease is 300 s
COMMANDS: Final = 0.016  # share of steps that are followed by a command
LEFT: Final = f"""
SELECT (SELECT count(*) FROM worker WHERE state IN ({states(LIVE)}))
    + (SELECT count(*) FROM launch_config WHERE state = 'draining') + (SELECT count(*) FROM unreachable_machine)"""


class Report(msgspec.Struct, frozen=True):
    """Result of one history: its faults and commands, the broken invariant, if any, and the number of counters that
    differ from the rows at its end."""

    seed: int
    found: frozenset[str]
    broken: str
    digest: str = ""  # of everything that happened in the cloud
    drift: int = 0


def scenario(seed: int, faults: str) -> Scenario:
    return decode(
        b'{"seed": %d, "accounts": {"sim-a": {"capacity": {"zone-c": 4}, "latency_seconds": 2}, '
        b'"sim-b": {"latency_seconds": 2}}, "images": {"%s": {"bad": "not_found"}}, '
        b'"boot_seconds_median": 40, "visibility_seconds": 5, "honours_tokens": %s, "faults": "%s"}'
        % (seed, MISSING_IMAGE.encode(), b"true" if seed % 2 else b"false", faults.encode())
    )


def accepting(seed: int) -> set[str]:
    """Accounts that only accept calls, of a history in which they honour tokens."""
    return {SECOND_ACCOUNT} if seed % 2 else set()


async def play(server: EmbeddedPostgres, seed: int) -> Report:
    """Play the history of a seed with all faults and commands."""
    deadlines = SHORT_LIVES if seed % SHORT_LIVES_EVERY == 0 else None
    pool: dict[str, Any] = {"max_capacity": MAX_CAPACITY, "honours_tokens": bool(seed % 2), "deadlines": deadlines}
    with pytest.MonkeyPatch.context() as patch:
        async with deployment_on(server, patch, seed, scenario(seed, FAULTS), **pool) as deployment:
            deployment.crashing, deployment.log.lost_acknowledgements = 0.1, 0.1
            deployment.cloud.late = True
            deployment.counts = COUNTS[sorted(COUNTS)[seed % len(COUNTS)]]
            deployment.machines.another_task = ANOTHER_TASK
            deployment.cloud.accepting = accepting(seed)
            deployment.tasks_at = arrivals(deployment.chance, TASKS, 600)
            if seed % CUT_OFF_EVERY == 0:
                begin = deployment.chance.uniform(100, 500)
                deployment.cut_off_between = (begin, begin + deployment.chance.uniform(*CUT_OFF_SECONDS))
            outages = Outages(deployment, seed)
            broken = await broken_by(deployment, seed, _with_faults(deployment, outages))
            found = faults_of(deployment) | outages.found | frozenset(+deployment.operator.made)
            drift = await usage.drift(deployment.databases["provisioner"])
            return Report(seed, found, broken, digest(deployment), drift)


async def _with_faults(deployment: Deployment, outages: Outages) -> None:
    await run(deployment, STEPS, outages)
    await outages.end()
    await settle(deployment, TASKS)
    await judge(deployment)


async def broken_by(deployment: Deployment, seed: int, history: Coroutine[Any, Any, None]) -> str:
    """Play a history to its end; returns the invariant that it broke, or an empty text."""
    try:
        await history
    except Exception as error:
        if not isinstance(error, AssertionError):
            traceback.print_exc()
        return f"seed {seed} at {deployment.elapsed:.1f} s: {error if str(error) else repr(error)}"
    return ""


async def run(deployment: Deployment, steps: int, outages: Outages | None = None) -> None:
    """Execute `steps` random steps, with time passing between them, and outages."""
    checker = Checker(deployment)
    await deployment.declare(LIMIT)
    await deployment.pass_time(1)
    for _ in range(steps):
        await deployment.step()
        if deployment.chance.random() < 0.5:
            await deployment.pass_time(deployment.chance.uniform(0, 6))
        if outages is not None:
            await outages.act()
        if deployment.crashing and deployment.chance.random() < (0.1 if deployment.launches_stopped else COMMANDS):
            await checker.check()
            await deployment.command()
        if deployment.launches_stopped or deployment.chance.random() < 0.25:
            await checker.check()
    await checker.check()


async def settle(deployment: Deployment, tasks: int, *others: Deployment) -> None:
    """End all faults and run until all tasks are done and no worker, drain, lease or record is left. `others` share the
    cloud, and have as many tasks."""
    checkers = {each: Checker(each) for each in (deployment, *others)}
    for each in checkers:
        await each.calm_down()
    for _ in range(SETTLED_WITHIN):
        before = len(deployment.cloud.facts)
        for each, checker in checkers.items():
            await each.round()
            await checker.check()
        waits = [await _waits_seconds(each, tasks, idle=len(each.cloud.facts) == before) for each in checkers]
        seconds = [wait for wait in waits if wait is not None]
        if not seconds:
            return
        for each in checkers:
            await each.pass_time(min(seconds))
    raise AssertionError("not settled: " + "; ".join([await _describe(each, tasks) for each in checkers]))


async def _waits_seconds(deployment: Deployment, tasks: int, *, idle: bool) -> float | None:
    """Time to the next round; None if nothing is left."""
    if len(deployment.cloud.done) < tasks or deployment.cloud.machines:
        return ROUND_SECONDS[idle]
    left = await deployment.databases["provisioner"].fetchval(LEFT)
    held = await deployment.databases["lease-broker"].fetchval("SELECT count(*) FROM leases WHERE ended_at IS NULL")
    if left or held:
        return DRAIN_ROUND_SECONDS
    waiting = [await deployment.databases[name].fetchval("SELECT count(*) FROM outbox") for name in SERVICES]
    return 0.0 if deployment.unread() or any(waiting) else None  # more time would add other records


async def _describe(deployment: Deployment, tasks: int) -> str:
    """State of a deployment that does not settle."""
    cloud, provisioner = deployment.cloud, deployment.databases["provisioner"]
    counts = await provisioner.fetch("SELECT state, count(*) FROM worker GROUP BY state")
    revisions = await provisioner.fetch("SELECT id, state, drain_until FROM launch_config WHERE state <> 'archived'")
    return (
        f"{len(cloud.done)} of {tasks} tasks done, {len(cloud.pending)} pending, {list(cloud.machines.values())}, "
        f"workers {counts}, revisions {revisions}"
    )


def faults_of(deployment: Deployment) -> frozenset[str]:
    """Faults of a history, of ALL_FAULTS: killed services, lost replies, refused calls, calls whose end was polled,
    machines that could not be terminated or left at their maximum age, repeated records, and a lease-broker that was
    cut off from Kafka and has recorded that."""
    replies = [fact for fact in deployment.cloud.facts if isinstance(fact, Reply)]
    numbers = Counter(
        (record.partition, as_received(record).sequence_number) for record in deployment.log.all(WORKER_LIFECYCLE.name)
    )
    found = {f"{name} killed" for name in deployment.deaths}
    found |= {"reply lost"} if any(reply.lost for reply in replies) else set()
    found |= {"call refused"} if len({reply.code for reply in replies}) > 1 else set()
    found |= {"call accepted"} if deployment.cloud.polled else set()
    found |= {"repeated"} if max(numbers.values(), default=0) > 1 else set()
    found |= set(deployment.machines.made)
    found |= {"stuck machine"} if deployment.cloud.refused else set()
    found |= {"old machine"} if _left_for_age(deployment) else set()
    found |= {"cut off"} if any(known.downtimes for known in deployment.receptions.values()) else set()
    return frozenset(found)


def digest(deployment: Deployment) -> str:
    """Digest of everything that happened in the cloud: two runs of a seed have the same."""
    return sha256(msgspec.json.encode(deployment.cloud.facts)).hexdigest()[:12]


def arrivals(chance: Random, number: int, over_seconds: float) -> list[float]:
    return sorted(chance.uniform(1, over_seconds) for _ in range(number))


def _left_for_age(deployment: Deployment) -> bool:
    """True if a worker was asked to leave since it had reached its maximum age."""
    events = (as_received(record).event for record in deployment.log.all(WORKER_LIFECYCLE.name))
    return any(isinstance(event, WorkerStopping) and event.reason in (REASON, OVERDUE) for event in events)
