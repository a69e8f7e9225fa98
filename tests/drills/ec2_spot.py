"""Interruptions of EC2 spot machines: those of one zone and instance type get an interruption notice.

Two pools, each in an account of its own, launch spot machines there and in another zone, and on-demand machines. FAULTS
are those of the stand-in: its interruptions begin once all machines work and last a moment, all others are in force
from the start. Judged by the ledgers of the stand-in and the queue, the published weights and the rows.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from slipway_common.declaration.models import Declaration
from slipway_common.declaration.parsing import parse
from slipway_local.demo.deployment import Deployment
from slipway_local.demo.ec2_machines import CREDENTIALS, Ec2Machines
from slipway_local.ec2 import facts as ec2
from slipway_local.ec2.faults import NOTATION
from slipway_simulator import facts
from slipway_simulator.notation import BadFault
from tests.drills.ec2_storm import DECLARATION
from tests.drills.harness import Harness, NotReached, Verdict, add_tasks, fetch, played

POOLS: Final = {"one": "aws-build", "two": "aws-test"}  # with their accounts
ZONE, OTHER_ZONE, TYPE = "us-east-1a", "us-east-1b", "m5.large"
CONFIGS: Final = {"spot": (ZONE, "spot"), "spot-elsewhere": (OTHER_ZONE, "spot"), "on-demand": (ZONE, "on-demand")}
FAULTS: Final = f"interruption:{ZONE}/{TYPE}"
MACHINES: Final = 4  # of each pool
TASKS: Final = 400
TASK_SECONDS: Final = 20.0
NOTICE_SECONDS: Final = 800.0  # product time: agents poll for notices every 5 s of real time
STAYS_SECONDS: Final = 60_000.0
WAIT_SECONDS: Final = 120.0  # real; a few on an idle machine
LOSS: Final = 0.75  # weight after the notices, relative to that before them; boots since then raise both
CAPACITIES: Final = "SELECT count(DISTINCT capacity_key) FROM provisioner.launch_config WHERE state <> 'archived'"
FAILED: Final = "SELECT coalesce(sum(failures), 0) FROM provisioner.launch_config_outcomes WHERE stage <> 'launch'"


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    try:
        faults = NOTATION.parse(os.environ.get("FAULTS") or FAULTS)
    except BadFault as error:
        return Verdict("", [f"FAULTS: {error}"])
    interruptions = [fault for fault in faults if fault.name == "interruption"]
    seconds = {"idle_timeout_seconds": STAYS_SECONDS, "give_up_idle_seconds": STAYS_SECONDS, "sweep_seconds": 60.0}
    deployment = harness.new_deployment(seconds=seconds, environment={"provisioner": CREDENTIALS})
    lasting = [fault for fault in faults if fault not in interruptions]
    machines = Ec2Machines(deployment, seed=harness.seed, faults=lasting, notice_seconds=NOTICE_SECONDS)
    await deployment.start(machines.start(harness.supervisor))
    await harness.play(deployment, _declared(deployment, machines))
    await machines.play()
    for pool in POOLS:
        await add_tasks(deployment, pool, TASKS, TASK_SECONDS)

    async def zones_known() -> bool:
        return bool((await fetch(deployment, CAPACITIES))[0][0] == len(CONFIGS))

    async def all_work() -> bool:
        return all(len(_at_work(deployment, machines, pool)) >= MACHINES for pool in POOLS)

    async def are_noticed() -> bool:
        return bool(_noticed(machines.written()))

    async def all_left() -> bool:
        written = machines.written()
        return _noticed(written).keys() <= _ended(written).keys()

    async def weights_fell() -> bool:
        after = await _weights(deployment)
        return all(_share(before, after, name) < LOSS for name in _expected(machines))

    await harness.until(all_work, "all machines work", within_seconds=WAIT_SECONDS)
    await harness.until(zones_known, "both accounts launch from the same capacities", within_seconds=WAIT_SECONDS)
    before = await _weights(deployment)
    for fault in interruptions:
        await machines.call("POST", "/faults", msgspec.to_builtins(fault))
    await harness.until(are_noticed, "machines got an interruption notice")
    await machines.call("DELETE", "/faults/interruption")
    await harness.until(all_left, "they have left", within_seconds=WAIT_SECONDS)
    await harness.until(all_work, "they are replaced", within_seconds=WAIT_SECONDS)
    with contextlib.suppress(NotReached):  # the verdict says which kept theirs
        await harness.until(weights_fell, "their capacity has lost weight in every pool")
    signals = (await deployment.call("GET", "weight-calculator", "/signals"))["items"]
    failed = (await fetch(deployment, FAILED))[0][0]
    return _verdict(deployment, machines, before, await _weights(deployment), signals=signals, failed=failed)


def _declared(deployment: Deployment, machines: Ec2Machines) -> Declaration:
    """Both pools in accounts of the example, with machines that stay."""
    body = machines.declared(deployment.declaration(DECLARATION)).model_dump(mode="json")
    template = body["worker_pools"][0]
    settings = template["launch_configs"][0]["settings"] | {"tasks_per_worker": None}
    sizes = {"min_capacity": MACHINES, "max_capacity": MACHINES}
    body["worker_pools"] = [
        template
        | sizes
        | {
            "id": pool,
            "launch_configs": [
                template["launch_configs"][0]
                | {"name": f"{pool}-{name}", "account": account, "zone": zone, "instance_type": TYPE, "price_factor": 1}
                | {"settings": settings | {"lifecycle": lifecycle}}
                for name, (zone, lifecycle) in CONFIGS.items()
            ],
        }
        for pool, account in POOLS.items()
    ]
    return parse(body)


def _expected(machines: Ec2Machines) -> set[str]:
    """Launch configs of the interrupted capacity: by the zone and lifecycle of the machines with a notice."""
    written = machines.written()
    noticed = _noticed(written)
    created = [fact for fact in written if isinstance(fact, ec2.InstanceCreated) and fact.instance_id in noticed]
    taken = {(fact.zone, fact.lifecycle) for fact in created}
    return {f"{pool}-{name}" for pool in POOLS for name, place in CONFIGS.items() if place in taken}


def _at_work(deployment: Deployment, machines: Ec2Machines, pool: str) -> set[str]:
    """Machines of a pool that have claimed a task and neither got a notice nor ended."""
    written = machines.written()
    gone = _ended(written).keys() | _noticed(written).keys()
    return {fact.instance_id for fact in _claims(deployment) if fact.pool_id == pool} - gone


def _claims(deployment: Deployment) -> Iterable[facts.TaskClaimed]:
    return (fact for fact in played(deployment) if isinstance(fact, facts.TaskClaimed))


def _noticed(written: Sequence[ec2.Fact]) -> dict[str, ec2.Noticed]:
    return {fact.instance_id: fact for fact in written if isinstance(fact, ec2.Noticed)}


def _ended(written: Sequence[ec2.Fact]) -> dict[str, ec2.ShuttingDown]:
    return {fact.instance_id: fact for fact in written if isinstance(fact, ec2.ShuttingDown)}


async def _weights(deployment: Deployment) -> Mapping[str, Mapping[str, Any]]:
    """Newest weight records by name of the launch config."""
    items = (await deployment.call("GET", "weight-calculator", "/weights"))["items"]
    return {record["name"]: record for record in items}


def _share(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> float:
    """Weight of a launch config after the notices, relative to that before them."""
    return float(after[name]["weight"] / before[name]["weight"])


def _verdict(
    deployment: Deployment,
    machines: Ec2Machines,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    signals: Sequence[Mapping[str, Any]],
    failed: int,
) -> Verdict:
    """`signals`: the live ones; `failed`: failures of stages other than launches."""
    written, expected = machines.written(), _expected(machines)
    noticed, ended = _noticed(written), _ended(written)
    taken = sorted(id_ for id_, notice in noticed.items() if ended[id_].by != "self" or ended[id_].at > notice.ends_at)
    first = min(notice.at for notice in noticed.values())
    over = min(notice.ends_at for notice in noticed.values())
    claims = list(_claims(deployment))
    known = {fact.instance_id for fact in claims if fact.at < first}
    fresh = {fact.instance_id for fact in claims if first <= fact.at < over} - known
    interrupted = sum(isinstance(fact, facts.TaskEnded) and fact.result == "interrupted" for fact in played(deployment))
    shares = {f"{pool}-{name}": _share(before, after, f"{pool}-{name}") for pool in POOLS for name in CONFIGS}
    fell = {name for name, share in shares.items() if share < LOSS}
    capacities = len({CONFIGS[name.partition("-")[2]] for name in expected})
    targets = ", ".join(signal["target_id"] for signal in signals) or "nothing"
    down = max(shares[name] for name in expected)
    others = min((share for name, share in shares.items() if name not in expected), default=1.0)
    figures = (
        f"{len(noticed)} machines noticed, {len(noticed) - len(taken)} drained and {len(fresh)} more at work before "
        f"the end, {interrupted} tasks interrupted; signal on {targets}; "
        f"weight of their {len(expected)} launch configs × {down:.2f} at most, of others × {others:.2f} at least"
    )
    problems = [
        text
        for is_so, text in (
            (taken, f"machines that did not leave before the end of their notice: {taken}"),
            (interrupted, f"tasks interrupted: {interrupted}"),
            (len(fresh) < len(noticed), f"machines that replaced {len(noticed)} before the end: {len(fresh)}"),
            (failed, f"boots and claims that count as failed: {failed}"),
            (len(signals) != capacities, f"signals for {capacities} capacities: {len(signals)}"),
            (fell - expected, f"lost weight without a notice: {sorted(fell - expected)}"),
            (expected - fell, f"kept their weight: {sorted(expected - fell)}"),
        )
        if is_so
    ]
    return Verdict(figures, problems)
