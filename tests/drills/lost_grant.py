"""Lost grants: the lease-broker grants, but the grant and the end of that lease never arrive at the provisioner.

A mirror of the lease-broker's topics loses the first grant of some leases by the seed, and the first event of their
end. The repeated requests have to be answered, so that every task gets a machine and no intent waits for ever.
"""

import contextlib
from random import Random

import msgspec

from slipway_common.base.ids import new_id
from slipway_common.events.lease import LeaseExpired, LeaseGranted
from slipway_common.events.topics import LEASE_LIFECYCLE, Topic
from slipway_common.messaging.envelope import decode_data
from slipway_local.demo.deployment import PARTITIONS
from tests.drills.declared import Account, Pool, declaration
from tests.drills.stage import NotReached, Stage, Verdict, add_tasks, are_done, done, fetch
from tests.e2e.mirror import Mirror

TASKS = 12
TASK_SECONDS = 60.0
WITHIN_SECONDS = 25.0
WAITING = "SELECT count(*)::int AS workers FROM provisioner.worker WHERE state IN ('requested', 'launching')"


class Loss(msgspec.Struct):
    """Loses the first grant of the first lease and of half the others, and the end of a lease whose grant was lost."""

    chance: Random
    chosen: dict[str, bool] = {}
    grants: int = 0
    ends: int = 0
    lost: set[tuple[str, type]] = set()
    arrived: set[str] = set()

    def loses(self, topic: Topic, type_name: str, value: bytes) -> bool:
        if topic is not LEASE_LIFECYCLE:
            return False
        event = decode_data(type_name, value)
        if not isinstance(event, LeaseGranted | LeaseExpired):
            return False
        chosen = self.chosen.setdefault(event.lease_id, not self.chosen or self.chance.random() < 0.5)
        once = event.lease_id, type(event)
        if not chosen or event.lease_id in self.arrived or once in self.lost:
            self.arrived.add(event.lease_id)
            return False
        self.lost.add(once)
        self.grants += isinstance(event, LeaseGranted)
        self.ends += isinstance(event, LeaseExpired)
        return True


async def play(stage: Stage) -> Verdict:
    """Play the drill."""
    inside = f"mirrored-{new_id()[-12:]}."
    deployment = stage.new_deployment(environment={"lease-broker": {"SLIPWAY_TOPIC_PREFIX": inside}})
    await deployment.start()
    loss = Loss(stage.rng)
    mirror = Mirror(
        deployment.kafka,
        service="lease-broker",
        outside=deployment.prefix,
        inside=inside,
        late={},
        loses=loss.loses,
    )
    async with mirror.running(PARTITIONS):
        accounts = {f"acc-{number}": Account(url=deployment.url("simulator"), limit=4) for number in range(3)}
        pools = {"builds": Pool(accounts=tuple(accounts))}
        await stage.play(deployment, declaration(stage.speed, accounts, pools))
        await add_tasks(deployment, "builds", TASKS, TASK_SECONDS)
        with contextlib.suppress(NotReached):
            await stage.until(
                lambda: are_done(deployment, "builds", TASKS), "all tasks are done", within_seconds=WITHIN_SECONDS
            )
        (waiting,) = await fetch(deployment, WAITING)
    finished, wedged = done(deployment, "builds"), waiting["workers"]
    problems = []
    if finished < TASKS:
        problems.append(f"{TASKS - finished} of {TASKS} tasks were never done")
    if wedged:
        problems.append(f"{wedged} workers wait for a grant for ever")
    if not loss.grants:
        problems.append("no grant was lost: the drill proves nothing")
    return Verdict(f"{loss.grants} grants lost, tasks done {finished} of {TASKS}, wedged {wedged}", problems)
