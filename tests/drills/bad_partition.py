"""A topic whose partitions have no leader any more: it was deleted, so that no batch for it is ever acknowledged.

Events of that topic are written all the time. An outside reader of all other topics measures from an event's commit to
its arrival. Once the topic exists again, the events that were held back are published, each of them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from slipway_api.events.topics import POOL_LIFECYCLE, TOPICS
from slipway_common.base.clock import utc_now
from slipway_common.base.errors import BadEvent
from slipway_common.messaging import topic_admin
from slipway_common.messaging.envelope import decode
from slipway_local.demo.deployment import PARTITIONS, SERVICES, Deployment
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, NotReached, Verdict, add_tasks, are_done, done, fetch, gathered

BAD = POOL_LIFECYCLE
BAD_SECONDS = 20.0  # real: twice as long as the client waits for a batch
POKE_SECONDS = 0.5
TASKS = 24
DELAY_SECONDS_MAX = 1.0
EVENTS_MIN = 60
WAITING = "SELECT count(*)::int AS n FROM provisioner.outbox WHERE topic = $1"


class Delays:
    """Seconds from the commit of an event to its arrival at a reader outside, after the time of arrival."""

    def __init__(self, deployment: Deployment) -> None:
        self.seen: list[tuple[float, float]] = []
        topics = [topic.name for topic in TOPICS if topic.producers & set(SERVICES) and topic is not BAD]
        self.names = [deployment.prefix + name for name in topics]
        self.consumer: Any = AIOKafkaConsumer(bootstrap_servers=deployment.kafka, enable_auto_commit=False)

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator["Delays"]:
        """Read from now on."""
        await self.consumer.start()
        try:
            places = [TopicPartition(name, number) for name in self.names for number in range(PARTITIONS)]
            self.consumer.assign(places)
            await self.consumer.seek_to_end(*places)
            task = asyncio.create_task(self._read())
            try:
                yield self
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        finally:
            await self.consumer.stop()

    async def _read(self) -> None:
        while True:
            for records in (await self.consumer.getmany(timeout_ms=20)).values():
                now = utc_now()
                for record in records:
                    with contextlib.suppress(BadEvent):
                        delay = now - decode(record.headers, received_at=now).time
                        self.seen.append((now.timestamp(), delay.total_seconds()))


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    deployment = harness.new_deployment()
    await deployment.start()
    accounts = {"acc": Account()}
    pools = {"builds": Pool(accounts=["acc"]), "poked": Pool(accounts=["acc"])}
    await harness.play(deployment, declaration(harness.speed, accounts, pools), boot_seconds_median=30)
    async with Delays(deployment).reading() as delays:
        await add_tasks(deployment, "builds", TASKS // 2, 60.0)
        await harness.until(
            lambda: are_done(deployment, "builds", TASKS // 2), "tasks are done with all topics available"
        )
        sound = [seconds for _, seconds in delays.seen]
        await delete_topic(deployment)
        began = utc_now().timestamp()
        harness.log(f"{BAD.name} is deleted")
        poking = asyncio.create_task(poke(deployment))
        for _ in range(TASKS // 2):
            await add_tasks(deployment, "builds", 1, 60.0)
            await asyncio.sleep(BAD_SECONDS / (TASKS // 2) * harness.rng.uniform(0.7, 1.3))
        poking.cancel()
        await asyncio.gather(poking, return_exceptions=True)
        waiting = (await fetch(deployment, WAITING, BAD.name))[0]["n"]
        until = utc_now().timestamp()
        await topic_admin.create(deployment.kafka, prefix=deployment.prefix, partitions=PARTITIONS)

        async def published() -> bool:
            return not (await fetch(deployment, WAITING, BAD.name))[0]["n"]

        await harness.until(published, f"{waiting} events of {BAD.name} are published once it exists again")
        with contextlib.suppress(NotReached):
            await harness.until(lambda: are_done(deployment, "builds", TASKS), "all tasks are done")
        beside = [seconds for at, seconds in delays.seen if began <= at <= until]
    return judge(sound, beside, waiting, await arrived(deployment), done(deployment, "builds"))


async def poke(deployment: Deployment) -> None:
    """Pause and resume a pool, each of which is an event of the bad topic."""
    while True:
        for verb in ("pause", "resume"):
            await deployment.call("POST", "provisioner", f"/pools/poked/{verb}", {"reason": "drill"})
            await asyncio.sleep(POKE_SECONDS)


async def delete_topic(deployment: Deployment) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=deployment.kafka)
    await admin.start()
    try:
        await admin.delete_topics([deployment.prefix + BAD.name])
    finally:
        await admin.close()


async def arrived(deployment: Deployment) -> int:
    """Number of events on the bad topic, which was empty when it was created again; repeats count once."""
    found = await gathered(deployment)
    return len({p.envelope.id for p in found.published if p.topic == BAD.name and p.envelope is not None})


def judge(sound: list[float], beside: list[float], waiting: int, published: int, finished: int) -> Verdict:
    """Compare the delays of the other topics with what is allowed, and with those before."""
    problems = []
    worst = max(beside, default=0.0)
    if worst > DELAY_SECONDS_MAX:
        problems.append(f"an event of another topic arrived after {worst:.1f} s, at most {DELAY_SECONDS_MAX:g} allowed")
    if finished < TASKS:
        problems.append(f"{TASKS - finished} of {TASKS} tasks were not done beside the bad topic")
    if published < waiting:
        problems.append(f"{waiting - published} of the {waiting} events that were held back are lost")
    if len(beside) < EVENTS_MIN or not waiting:
        problems.append(f"{len(beside)} events beside, {waiting} of the bad topic waiting: the drill proves nothing")
    delays = f"other topics' delay {worst:.2f} s (before: {max(sound):.2f})"
    return Verdict(f"{delays} in {len(beside)} events, {waiting} held back, {published} published", problems)
