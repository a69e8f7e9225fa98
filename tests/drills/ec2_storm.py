"""A storm on EC2: lost and broken replies, throttles, no capacity, late and torn listings, an unresponsive API, and
killed provisioners, each followed by one with another `register_url`.

The stand-in for EC2 checks image, quota and capacity before tokens, so that a refused repeat proves nothing about its
first call. Machines boot for longer than it takes until they may be looked up, so that none makes itself known before.
WORKERS tasks need a machine each, the provisioner is killed KILLS times. Judged by the ledgers of the stand-in and the
queue, the topics and the rows; what is left is counted in moto.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from slipway_api.events import worker as events
from slipway_common.declaration.models import Declaration
from slipway_common.declaration.parsing import parse
from slipway_local.check import path_check
from slipway_local.check.evidence import Evidence
from slipway_local.demo.deployment import Deployment
from slipway_local.demo.ec2_machines import CREDENTIALS, Ec2Machines
from slipway_local.demo.program import settle
from slipway_local.ec2 import facts as ec2
from slipway_local.ec2.faults import NOTATION
from slipway_simulator import facts
from tests.drills.harness import Harness, Verdict, add_tasks, are_done, gathered

DECLARATION: Final = Path("examples/slipway-aws.yaml")
POOL: Final = "agents"
TASK_SECONDS: Final = 20.0
WAVES: Final = 6
STORM_SECONDS: Final = 260.0  # product time in which tasks arrive; provisioners are killed about as long
FAULTS: Final = (
    "lost-reply:0.25,broken-reply:0.1,late-listing:40,torn-listing:0.5,refuse:DescribeInstances/InternalError/0.1,"
    "refuse:RunInstances/InternalError/0.1,throttle:40s-90s,latency:60:180s-220s"
)
# Each zone lacks capacity for a while, again and again, so that a busy machine, on which all takes longer, sees it too.
CAPACITY_SECONDS: Final = 120.0
NO_CAPACITY_SECONDS: Final = 40.0
NO_CAPACITY_FROM: Final = {"us-east-1a": 40.0, "us-east-1b": 100.0, "us-east-1c": 70.0, "us-east-1d": 130.0}
CAPACITY_TIMES: Final = 100
BOOT_SECONDS: Final = 150.0  # longer than the timeout of calls and the visibility together
VISIBILITY_SECONDS: Final = 60.0  # of the accounts; longer than instances are hidden
STARTING_MAX: Final = 16  # machines of each account; boots are long
MACHINES_MAX: Final = 32
# Further launch configs, as those of the example in another zone: a zone that recovers launches few machines at first.
ELSEWHERE: Final = {"us-east-1a": "us-east-1c", "us-east-1b": "us-east-1d"}
# A provisioner that is killed comes back after seconds of real time, and the machines' processes run in real time.
SECONDS: Final = {"idle_timeout_seconds": 60.0, "call_timeout_seconds": 40.0, "unresponsive_timeout_seconds": 2400.0}
DONE_SECONDS: Final = 400.0  # real; half a minute on an idle machine
# A run with fewer lost replies, or calls without any reply, proves nothing. Usually there are several times as many.
WORKERS_PER_LOST: Final = 20
WORKERS_PER_UNANSWERED: Final = 40
TORN: Final = "Unavailable"  # code of a page after the first one
# Ways to write one address, which differ in the bytes of the user data.
SUFFIXES: Final = ("/workers/register", "/workers/register/", "", "/")


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    given = {name: os.environ.get(name) or default for name, default in (("WORKERS", "60"), ("KILLS", "4"))}
    if not all(number.isdecimal() for number in given.values()):
        return Verdict("", [f"WORKERS={given['WORKERS']} KILLS={given['KILLS']}: both have to be whole numbers"])
    workers, kills = int(given["WORKERS"]), int(given["KILLS"])
    deployment = harness.new_deployment(seconds=SECONDS, environment={"provisioner": CREDENTIALS})
    machines = Ec2Machines(
        deployment,
        seed=harness.seed,
        faults=NOTATION.parse(FAULTS),
        capacity={zone: _capacity(at) for zone, at in NO_CAPACITY_FROM.items()},
        tokens_first=False,
        boot_seconds_median=BOOT_SECONDS,
        boot_sigma=0.1,
    )
    await deployment.start(machines.start(harness.supervisor))
    await harness.play(deployment, _declared(deployment, machines))
    await machines.play()
    async with asyncio.TaskGroup() as group:
        group.create_task(_add_tasks(harness, deployment, workers))
        group.create_task(_kill(harness, deployment, kills))

    async def all_done() -> bool:
        return await are_done(deployment, POOL, workers)

    await harness.until(all_done, f"{workers} tasks are done", within_seconds=DONE_SECONDS)
    await machines.leave()
    harness.log("all machines have ended")
    await settle(deployment)
    harness.log("calls are settled")
    found = await gathered(deployment, settle_seconds=deployment.settle_seconds)
    await machines.count()
    return _verdict(machines, found, workers=workers, kills=kills)


def _declared(deployment: Deployment, machines: Ec2Machines) -> Declaration:
    body = machines.declared(deployment.declaration(DECLARATION)).model_dump(mode="json")
    for account in body["accounts"]:
        account["settings"]["visibility_seconds"] = VISIBILITY_SECONDS / deployment.speed
    for lease_pool in body["lease_pools"]:
        lease_pool["limit"] = STARTING_MAX
    for pool in body["worker_pools"]:
        pool["max_capacity"] = MACHINES_MAX
        pool["launch_configs"] += [
            config | {"name": f"{config['name']}-elsewhere", "zone": ELSEWHERE[config["zone"]]}
            for config in pool["launch_configs"]
        ]
    return parse(body)


def _capacity(at: float) -> list[tuple[float, int | None]]:
    """None from `at` on, then any number, by turns."""
    return [
        (at + turn * CAPACITY_SECONDS + after, number)
        for turn in range(CAPACITY_TIMES)
        for after, number in ((0.0, 0), (NO_CAPACITY_SECONDS, None))
    ]


async def _add_tasks(harness: Harness, deployment: Deployment, workers: int) -> None:
    """Add the tasks in waves, the first at once."""
    sizes = Counter(harness.rng.randrange(WAVES) for _ in range(workers))
    times = [0.0, *sorted(harness.rng.uniform(0.0, STORM_SECONDS) for _ in range(WAVES - 1))]
    for wave, (at, earlier) in enumerate(zip(times, [0.0, *times], strict=False)):
        await harness.product_seconds(at - earlier)
        if sizes[wave]:
            await add_tasks(deployment, POOL, sizes[wave], TASK_SECONDS)


async def _kill(harness: Harness, deployment: Deployment, kills: int) -> None:
    """Kill the provisioner at intervals, and start one whose register_url is written in another way."""
    for number in range(1, kills + 1):
        await harness.product_seconds(harness.rng.uniform(0.5, 1.0) * STORM_SECONDS / kills)
        url = deployment.url("provisioner") + SUFFIXES[number % len(SUFFIXES)]
        await deployment.replace("provisioner", {"SLIPWAY_REGISTER_URL": url})
        harness.log(f"provisioner killed, and started with register_url {url}")


def _verdict(machines: Ec2Machines, found: Evidence, *, workers: int, kills: int) -> Verdict:
    written = machines.written()
    merged = machines.merged(found)
    report = path_check.judge(merged)
    created = [fact for fact in written if isinstance(fact, ec2.InstanceCreated)]
    replies = [fact for fact in written if isinstance(fact, ec2.Reply) and fact.action == "RunInstances"]
    lost = sum(reply.lost and reply.code == "OK" for reply in replies)
    unanswered = _unanswered(written, created, replies)
    refused = Counter(reply.code for reply in replies if reply.code != "OK")
    torn = sum(isinstance(fact, ec2.Reply) and fact.code == TORN for fact in written)
    orphans, doubled = _orphans(found, created), _doubled(found, created)
    healthy = _healthy_terminated(found, written)
    left = {kind: number for kind, number in (machines.left or {}).items() if number}
    claimed = len({fact.task_id for fact in found.ledger if isinstance(fact, facts.TaskClaimed)})
    figures = (
        f"{len(created)} machines for {workers} tasks, {lost} lost replies, {sum(refused.values())} refused calls, "
        f"{sum(reply.repeated for reply in replies)} repeats answered, {unanswered} calls without any reply, "
        f"{report.looked_up} found by look-up, {torn} torn listings, {kills} kills; "
        f"orphans {orphans}, doubled {doubled}, healthy terminated {healthy}; {machines.left_over()}"
    )
    problems = [
        text
        for is_so, text in (
            (orphans, f"machines without a worker: {orphans}"),
            (doubled, f"machines beyond the number of their call: {doubled}"),
            (healthy, f"machines terminated at work: {healthy}"),
            (left, f"left in the cloud: {left}"),
            (report.doubled + report.unmatched, f"doubled {report.doubled}, unmatched {report.unmatched}"),
            (report.lost, f"create calls or revisions lost: {report.lost}"),
            (report.dead, f"dead letters: {report.dead}"),
            (claimed < workers, f"{claimed} tasks were claimed"),
            (lost < workers // WORKERS_PER_LOST, f"only {lost} replies were lost, which proves nothing"),
            (
                workers >= WORKERS_PER_LOST and "InsufficientInstanceCapacity" not in refused,
                "no call was refused for lack of capacity, which proves nothing",
            ),
            (
                unanswered < workers // WORKERS_PER_UNANSWERED,
                f"only {unanswered} calls had no reply from any attempt, which proves nothing about look-ups",
            ),
        )
        if is_so
    ]
    return Verdict(figures, problems)


def _unanswered(
    written: Sequence[ec2.Fact], created: Sequence[ec2.InstanceCreated], replies: Sequence[ec2.Reply]
) -> int:
    """Batches with machines of which no attempt was answered, so that only a look-up can find them."""
    batches = {fact.call_id: fact.batch for fact in written if isinstance(fact, ec2.Launch)}
    answered = {batches[reply.call_id] for reply in replies if reply.code == "OK" and not reply.lost}
    return len({fact.batch for fact in created} - answered)


def _orphans(found: Evidence, created: Sequence[ec2.InstanceCreated]) -> int:
    """Machines that never were the instance of a worker."""
    launched = {
        record.event.instance_id
        for record in found.published
        if isinstance(record.event, events.WorkerLaunched | events.WorkerRegistered)
    }
    return sum(fact.instance_id not in launched for fact in created)


def _doubled(found: Evidence, created: Sequence[ec2.InstanceCreated]) -> int:
    """Machines beyond the units of their batch."""
    units = {batch["id"]: batch["units"] for batch in found.rows.batches}
    return sum(max(0, count - units.get(batch, 0)) for batch, count in Counter(fact.batch for fact in created).items())


def _healthy_terminated(found: Evidence, written: Sequence[ec2.Fact]) -> int:
    """Machines that were terminated although they had registered and were not asked to stop."""
    by_api = {fact.instance_id for fact in written if isinstance(fact, ec2.ShuttingDown) and fact.by == "api"}
    workers = {row["id"]: row["instance_id"] for row in found.rows.workers}
    registered, stopping = (
        {workers.get(record.event.worker_id) for record in found.published if isinstance(record.event, kind)}
        for kind in (events.WorkerRegistered, events.WorkerStopping)
    )
    return len(by_api & registered - stopping)
