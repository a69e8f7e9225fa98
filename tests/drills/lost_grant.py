"""Lost grants: the lease-broker grants, but the grant, or the end of that lease too, never arrives at the provisioner.

A mirror of the lease-broker's topics loses the first grant of some leases by the seed, and all grants of others until
these leases have ended, with the first event of that end. The repeated requests have to be answered, so that every
task gets one machine and no intent waits for ever.
"""

import contextlib
from random import Random

import msgspec

from slipway_api.events.lease import LeaseExpired, LeaseGranted
from slipway_api.events.topics import LEASE_LIFECYCLE, Topic
from slipway_common.base.ids import new_id
from slipway_common.messaging.envelope import decode_data
from slipway_local.demo.deployment import PARTITIONS
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, NotReached, Verdict, add_tasks, are_done, done, fetch, played
from tests.e2e.mirror import Mirror

SOUND, GRANTED_AGAIN, ENDED = "sound", "granted again", "ended"
LOSING_LEASES = 6
TASKS = 12
TASK_SECONDS = 60.0
WITHIN_SECONDS = 25.0
WAITING = "SELECT count(*)::int AS workers FROM provisioner.worker WHERE state IN ('requested', 'launching')"


class Loss(msgspec.Struct):
    """Loses the first grant of a lease, or all of its grants and the first event of its end. Each happens to one of the
    first two leases; chance decides for some that follow, and the others are sound."""

    chance: Random
    courses: dict[str, str] = {}
    lost: set[tuple[str, type]] = set()

    def loses(self, topic: Topic, type_name: str, value: bytes) -> bool:
        if topic is not LEASE_LIFECYCLE:
            return False
        event = decode_data(type_name, value)
        if not isinstance(event, LeaseGranted | LeaseExpired):
            return False
        once = event.lease_id, type(event)
        is_grant = isinstance(event, LeaseGranted)
        is_lost = {
            SOUND: False,
            GRANTED_AGAIN: is_grant and once not in self.lost,
            ENDED: is_grant or once not in self.lost,
        }[self._course(event.lease_id)]
        if is_lost:
            self.lost.add(once)
        return is_lost

    def _course(self, lease_id: str) -> str:
        if lease_id not in self.courses:
            known = len(self.courses)
            by_chance = self.chance.choice((SOUND, GRANTED_AGAIN, ENDED)) if known < LOSING_LEASES else SOUND
            self.courses[lease_id] = (ENDED, GRANTED_AGAIN)[known] if known < 2 else by_chance
        return self.courses[lease_id]

    def number(self, type_: type) -> int:
        """Number of leases of which such an event was lost."""
        return sum(lost is type_ for _, lost in self.lost)


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    inside = f"mirrored-{new_id()[-12:]}."
    deployment = harness.new_deployment(environment={"lease-broker": {"SLIPWAY_TOPIC_PREFIX": inside}})
    await deployment.start()
    loss = Loss(harness.rng)
    mirror = Mirror(
        deployment.kafka,
        service="lease-broker",
        outside=deployment.prefix,
        inside=inside,
        late={},
        loses=loss.loses,
    )
    async with mirror.running(PARTITIONS):
        accounts = {f"acc-{number}": Account(limit=4) for number in range(3)}
        pools = {"builds": Pool(accounts=tuple(accounts))}
        await harness.play(deployment, declaration(harness.speed, accounts, pools))
        await add_tasks(deployment, "builds", TASKS, TASK_SECONDS)
        with contextlib.suppress(NotReached):
            await harness.until(
                lambda: are_done(deployment, "builds", TASKS), "all tasks are done", within_seconds=WITHIN_SECONDS
            )
        (waiting,) = await fetch(deployment, WAITING)
    finished, wedged = done(deployment, "builds"), waiting["workers"]
    machines = sum(isinstance(fact, facts.InstanceCreated) for fact in played(deployment))
    problems = []
    if finished < TASKS:
        problems.append(f"{TASKS - finished} of {TASKS} tasks were never done")
    if machines > TASKS:
        problems.append(f"{machines} machines for {TASKS} tasks")
    if wedged:
        problems.append(f"{wedged} workers wait for a grant")
    grants, ends = loss.number(LeaseGranted), loss.number(LeaseExpired)
    if grants < 2 or not ends:
        problems.append(f"{grants} leases lost a grant, and {ends} their end: the drill proves nothing")
    lost = f"{grants} grants lost, {ends} ends lost"
    return Verdict(f"{lost}, tasks done {finished} of {TASKS}, machines {machines}, wedged {wedged}", problems)
