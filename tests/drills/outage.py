"""Outages of PostgreSQL and of the provisioner for 20 product minutes each, then a jump of the database's clocks.

Machines boot and work meanwhile, fewer than those whose common silence keeps any of them from being stopped. None may
be terminated, no task interrupted, and no boot charged; machines with a bad image still time out and are charged.
"""

from functools import partial

import asyncpg

from slipway_api.events.worker import Result, Scope
from slipway_common.base.clock import utc_now
from slipway_local.check.evidence import Evidence
from slipway_local.demo.deployment import SERVICES, Deployment
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, Verdict, add_tasks, fetch, gathered, played

OUTAGE_SECONDS = 1200.0
JUMP = "1 hour"
BUSY, BOOTING = 4, 3
# Shorter than an outage, longer than what counts of it: five real seconds, and the time until workers have reported.
SECONDS = {"unresponsive_timeout_seconds": 1190.0, "boot_timeout_seconds": 1190.0}
TASK_SECONDS = 20_000.0  # longer than the drill
PASSES_SECONDS = 2.0  # real: several passes over the deadlines
JUMPED = "SELECT at > clock_timestamp() + interval '30 minutes' AS is_so FROM provisioner.deadline_pass"
CHARGED = """
SELECT coalesce(sum(o.failures), 0)::int AS n FROM provisioner.launch_config_outcomes o
JOIN provisioner.launch_config c ON c.id = o.launch_config_id WHERE c.pool_id = 'bad'"""


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    deployment = harness.new_deployment(seconds=SECONDS)
    await deployment.start()
    accounts = {"acc": Account()}
    pools = {"good": Pool(accounts=["acc"]), "bad": Pool(accounts=["acc"], image="bad", max_capacity=2)}
    faults = [{"name": "bad-image", "arg": "bad"}]
    await harness.play(deployment, declaration(harness.speed, accounts, pools), faults=faults, boot_seconds_median=200)
    await add_tasks(deployment, "bad", 2, TASK_SECONDS)
    await add_tasks(deployment, "good", BUSY, TASK_SECONDS)
    await harness.until(lambda: created(deployment, "bad", 2), "2 machines with the bad image boot")
    await harness.until(lambda: started(deployment, BUSY), f"{BUSY} tasks run")
    outages: list[tuple[float, float]] = []
    for part, number in (("postgres", BUSY + BOOTING), ("provisioner", BUSY + 2 * BOOTING)):
        await add_tasks(deployment, "good", BOOTING, TASK_SECONDS)
        await harness.until(partial(created, deployment, "good", number), f"{BOOTING} more machines boot")
        down_at = utc_now().timestamp()
        await deployment.supervisor.kill(part)
        harness.log(f"{part} is killed, and stays down for {OUTAGE_SECONDS / 60:g} product minutes")
        await harness.product_seconds(OUTAGE_SECONDS * harness.rng.uniform(1.0, 1.05))
        outages.append((down_at, utc_now().timestamp()))
        await deployment.supervisor.restart(part)
        await harness.until(partial(started, deployment, number), f"{part} is back, {number} tasks run")
    await set_clocks(deployment, f"clock_timestamp() + interval '{JUMP}'")

    async def jumped() -> bool:
        return bool((await fetch(deployment, JUMPED))[0]["is_so"])

    await harness.until(jumped, f"the clocks of PostgreSQL have jumped by {JUMP} in a pass over the deadlines")
    await harness.product_seconds(PASSES_SECONDS * harness.speed)
    await set_clocks(deployment, "clock_timestamp()")

    async def charged() -> bool:
        return bool((await fetch(deployment, CHARGED))[0]["n"])

    await harness.until(charged, "the bad image is charged")
    await harness.product_seconds(PASSES_SECONDS * harness.speed)
    found = await gathered(deployment)
    return judge(found, outages)


async def created(deployment: Deployment, pool_id: str, number: int) -> bool:
    return len(machines(played(deployment), pool_id)) >= number


async def started(deployment: Deployment, number: int) -> bool:
    return sum(isinstance(f, facts.TaskStarted) and f.pool_id == "good" for f in played(deployment)) >= number


def machines(ledger: list[facts.Fact], pool_id: str) -> set[str]:
    """Instances that were created for a pool."""
    created = [fact for fact in ledger if isinstance(fact, facts.InstanceCreated)]
    return {fact.instance_id for fact in created if fact.config.startswith(f"{pool_id}-")}


def boots(ledger: list[facts.Fact], down_at: float, up_at: float) -> int:
    """Number of machines that were created before an outage and registered after it."""
    before = {fact.instance_id for fact in ledger if isinstance(fact, facts.InstanceCreated) and fact.at < down_at}
    after = {fact.instance_id for fact in ledger if isinstance(fact, facts.Registered) and fact.at > up_at}
    registered = {fact.instance_id for fact in ledger if isinstance(fact, facts.Registered) and fact.at < up_at}
    return len((before & after) - registered)


async def set_clocks(deployment: Deployment, body: str) -> None:
    """Replace the clock of every service's schema."""
    db = await asyncpg.connect(deployment.database_url)
    try:
        async with db.transaction():
            for service in SERVICES:
                schema = service.replace("-", "_")
                await db.execute(
                    f"CREATE OR REPLACE FUNCTION {schema}.slipway_clock() RETURNS timestamptz LANGUAGE sql VOLATILE "
                    f"AS $$SELECT {body}$$"
                )
    finally:
        await db.close()


def judge(found: Evidence, outages: list[tuple[float, float]]) -> Verdict:
    """Count by the ledger what was ended, and by the topic what was charged. In each of the `outages` a machine has to
    have booted."""
    ledger = list(found.ledger)
    good = machines(ledger, "good")
    terminated = sum(isinstance(f, facts.Terminated) and f.by == "api" and f.instance_id in good for f in ledger)
    drained = sum(isinstance(f, facts.DrainRequested) and f.instance_id in good for f in ledger)
    lost = sum(isinstance(f, facts.TaskEnded) and f.result == "interrupted" for f in ledger)
    charged = {"good": 0, "bad": 0}
    for record in found.published:
        outcome = getattr(record.event, "outcome", None)
        if outcome is not None and outcome.result is Result.FAILED and outcome.scope is not Scope.NOTHING:
            charged[record.event.pool_id] += 1
    problems = [
        text
        for is_so, text in (
            (terminated + drained, f"{terminated} machines were terminated, and {drained} asked to stop"),
            (lost, f"{lost} tasks were interrupted"),
            (charged["good"], f"{charged['good']} starts were charged to the good image or its launch config"),
            (not charged["bad"], "the bad image was not charged"),
            (
                not all(boots(ledger, *outage) for outage in outages),
                "nothing booted in an outage: it proves nothing",
            ),
        )
        if is_so
    ]
    return Verdict(
        f"terminated {terminated}, tasks lost {lost}, charged {charged['good']} (bad image: {charged['bad']})", problems
    )
