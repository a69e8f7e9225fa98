"""One day of a deployment at a hundredth of its volume, written by the services' own handlers and loops.

The services are those of the simulation: on one database, with a clock that is set, connected by a log in memory. What
each day makes anew has a name with MARK.
"""

from datetime import timedelta
from typing import Any, Final

import msgspec

from bench.growth.copies import MARK
from slipway_common.base.ids import new_id
from slipway_common.events.lease import LeaseGroup, LeaseRequested
from slipway_common.events.pool import DemandReported
from slipway_common.events.signal import SignalRaised
from slipway_common.events.topics import LAUNCH_CONFIG_SIGNAL, POOL_DEMAND
from slipway_common.messaging import consume, outbox
from slipway_common.messaging.envelope import Envelope, encode
from slipway_provisioner.store import launch_stops
from tests.simulation.commands import IMAGES, POOL, ZONES, launch_config
from tests.simulation.deployment import START, Deployment
from tests.simulation.history import arrivals, settle
from tests.simulation.log import PARTITIONS

WORKERS: Final = 60
"""Workers of the day, each with a task."""
ROUNDS: Final = 24
ROUND_SECONDS: Final = 20.0
TEAM: Final = f"team-{MARK}"


async def quiet(deployment: Deployment) -> None:
    """Run some rounds without work, so that what is updated every day exists."""
    for _ in range(3):
        await deployment.round()
        await deployment.pass_time(ROUND_SECONDS)


async def write(deployment: Deployment) -> None:
    """Write the day: workers, a roll-out and its rollback, a pool that comes and goes, a launch stop, pauses, demand of
    a renamed monitor and of an unknown pool, a refused signal, waiting tenants, groups and slots, and a gap."""
    deployment.tasks_at = [deployment.elapsed + at for at in arrivals(deployment.chance, WORKERS, 600)]
    await _commands(deployment)
    await _records(deployment)
    for number in range(ROUNDS):
        await deployment.round()
        await deployment.pass_time(ROUND_SECONDS)
        if number == ROUNDS // 2:
            await _remove_the_team(deployment)
    await settle(deployment, WORKERS)


async def _commands(deployment: Deployment) -> None:
    operator = deployment.operator
    spec, etag = await operator._spec()
    spec["launch_configs"] = [launch_config(zone, f"linux-{MARK}") for zone in ZONES]
    assert await operator._change("PUT", f"/pools/{POOL}", spec, {"replace": "rolling", "drain_seconds": 30.0}, etag)
    team = dict(deployment.body["worker_pools"][0]) | {"id": TEAM, "max_capacity": 1}
    team["launch_configs"] = [launch_config(ZONES[0], IMAGES[0]) | {"name": f"{TEAM}-a"}]
    body = deployment.body | {"worker_pools": [*deployment.body["worker_pools"], team]}
    await operator.declare(body)
    async with deployment.databases["provisioner"].acquire() as db, db.transaction():
        until = deployment.now("provisioner") + timedelta(minutes=5)
        await launch_stops.put(db, "pool", TEAM, reason="drill", by="op", until=until)
        await consume.record_gap(db, "provisioner", (POOL_DEMAND.name, 0), "retention", "offsets 1…2")
        group = LeaseGroup(name=f"group-{MARK}", size=2, spread_seconds=60)
        await outbox.enqueue(
            db,
            [
                LeaseRequested(lease_pool_id="sim-a", request_id=new_id(), units=1, tenant=f"tenant-{MARK}"),
                LeaseRequested(
                    lease_pool_id="sim-a", request_id=new_id(), units=1, tenant=f"tenant-{MARK}", group=group
                ),
            ],
        )


async def _remove_the_team(deployment: Deployment) -> None:
    await deployment.operator.declare(deployment.body)


async def _records(deployment: Deployment) -> None:
    """Append records of outsiders to the log."""
    at = START + timedelta(seconds=deployment.elapsed)
    for pool_id, source in ((POOL, f"monitor-{MARK}"), (f"nobody-{MARK}", "q")):
        report = DemandReported(pool_id=pool_id, source=source, pending=0, claimed=0, observed_at=at)
        _append(deployment, POOL_DEMAND.name, report, f"{pool_id}/{source}")
    refused_signal(deployment)


def refused_signal(deployment: Deployment) -> None:
    """Append a signal about nothing."""
    raised = SignalRaised(
        source=f"monitor-{MARK}",
        target_kind="config",
        target_id=f"nothing-{MARK}",
        kind="degraded",
        value=0.5,
        ttl_seconds=60,
        observed_at=START + timedelta(seconds=deployment.elapsed),
        reason="drill",
    )
    _append(deployment, LAUNCH_CONFIG_SIGNAL.name, raised, raised.target_id)


def _append(deployment: Deployment, topic: str, event: Any, subject: str) -> None:
    at = START + timedelta(seconds=deployment.elapsed)
    envelope = Envelope(id=new_id(), type=event.type, source=f"/monitor-{MARK}", subject=subject, time=at)
    row = {
        "key": subject.encode(),
        "value": msgspec.json.encode(event),
        "headers": encode(envelope),
        "timestamp": int(at.timestamp() * 1000),
    }
    deployment.log.append(topic, deployment.chance.randrange(PARTITIONS), row)
