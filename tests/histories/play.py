"""One history: what happens in its own lease pools while a round of them shares the system and its faults.

Most is left to chance. Four things happen in every history, because sound brokers show their worth only there: a lease
is renewed on Kafka in a batch that waits for another pool's lock, and meanwhile over HTTP; one is renewed late while
whoever lets it pass away cannot write yet; a former holder speaks under its old token, and a stranger under the right
one.
"""

import asyncio
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

from slipway_common.clock import monotonic_seconds
from slipway_common.events.lease import LeaseRenewRequested, LeaseRequested
from slipway_common.relay import partition_for
from tests.histories.actor import Actor
from tests.histories.bus import Asker, Bus
from tests.histories.clients import Worker
from tests.histories.history import Call, History, Lease
from tests.histories.journal import Journal, calls
from tests.histories.system import OPERATOR, OWNERS, PARTITIONS, System

TTL_SECONDS: Final = 0.8
SKEW_SECONDS: Final = 0.05
TERMS: Final[dict[str, Any]] = {
    "hold_seconds": 4.0, "ttl_seconds": TTL_SECONDS, "reserve_seconds": 0.6, "lock_delay_seconds": 0.0,
    "pacing": "off", "backoff": None,
}  # fmt: skip
UNITS: Final = 3  # of the pool that is shared
# The batch that waits. Times are seconds of the round.
CROSSED_TTL_SECONDS: Final = 1.0
HELD_UP: Final = (0.15, 1.25)  # the row of a pool that the batch names first: when, and for how long
BATCH_AT: Final = 0.3
CROSSED_RENEWALS: Final = (0.6, 0.95, 1.3)
CROSSED_LAST: Final = 2.15
# The late renewal.
LATE_AT: Final = 3.2
UNWRITTEN: Final = (LATE_AT + 0.6, 0.9)  # all writes of leases: when, and for how long; a deadline passes meanwhile
LATE_RENEWALS: Final = (LATE_AT + 1.1, LATE_AT + 1.7)
SCRIPTS_END: Final = LATE_AT + 2.0
# Every pool whose lock is held up, one for each partition of the requests; ids before all others: locked first.
HELD_POOLS: Final = [
    next(name for name in (f"a-held-{number}" for number in range(100)) if partition_for(name, PARTITIONS) == wanted)
    for wanted in range(PARTITIONS)
]


class Play:
    """One history of a round. Its pools: `alone` and `shared` for clients in processes of their own, `late` and
    `crossed` for what happens in every history, `kafka` for a client that speaks by Kafka alone."""

    def __init__(self, name: str, seed: str, system: System, bus: Bus) -> None:
        self.name = name
        self.rng = Random(seed)
        self.system = system
        self.bus = bus
        self.alone, self.shared, self.late, self.crossed, self.kafka = (
            f"{name}-{kind}" for kind in ("alone", "shared", "late", "crossed", "kafka")
        )
        self.limits = {self.alone: 1, self.shared: UNITS, self.late: 1, self.crossed: 1, self.kafka: 2}
        self.lines: list[bytes] = []
        self.journal = Journal(self.lines.append)
        self.asker = Asker(f"{name}-asker", bus, self.kafka)
        self.operator = self.actor("operator", OPERATOR)
        self.holder, self.waiter = self.actor("holder", OWNERS[0]), self.actor("waiter", OWNERS[1])
        self.stranger = self.actor("stranger", OWNERS[2])

    def actor(self, name: str, owner: str) -> Actor:
        """One that lives in this process and whose answers are not dropped."""
        return Actor(
            f"{self.name}-{name}", owner=owner, secret=self.system.secrets[owner], ports=self.system.ports,
            journal=self.journal, rng=self.rng, resource=self.system.resource_port,
        )  # fmt: skip

    def declared(self) -> list[dict[str, Any]]:
        pools = [TERMS | {"id": pool, "limit": limit} for pool, limit in self.limits.items()]
        return [pool | ({"ttl_seconds": CROSSED_TTL_SECONDS} if pool["id"] == self.crossed else {}) for pool in pools]

    def workers(self, group: str, seconds: float) -> Iterator[Worker]:
        """Clients of this history in one process; their clocks jump at some instant of the next so many seconds."""
        for pool, units in ((self.alone, 1), (self.shared, UNITS - 1)):
            owner = self.rng.choice(OWNERS)
            jump = monotonic_seconds() + self.rng.uniform(0, seconds), self.rng.uniform(-1.0, 1.0)
            yield Worker(
                name=f"{pool}-{group}", owner=owner, secret=self.system.secrets[owner], pool=pool, units=units,
                ttl_seconds=TTL_SECONDS, jumps=[jump],
            )  # fmt: skip

    async def play(self, began: float, end_at: float) -> None:
        """From `began`, the round's zero, on."""

        async def chance() -> None:
            while monotonic_seconds() < end_at:
                await self.asker.once(self.rng.randint(1, 3))
                await asyncio.sleep(self.rng.uniform(0.05, 0.3))

        await asyncio.gather(
            self.cross(began), self.renew_late(began), self.change_limits(end_at), chance()
        )

    # What happens in every history

    async def cross(self, began: float) -> None:
        """A batch on Kafka waits for one pool's lock and then renews a lease of another, which was renewed over HTTP
        meanwhile: that must not shorten its life. Then a former holder and a stranger speak."""
        pool = self.crossed
        lease = (await self.holder.acquire(pool, f"{pool}-1")).lease
        if lease is None:
            return
        waiting = asyncio.create_task(self.wait(self.waiter, pool, f"{pool}-2", 4.0))
        held = HELD_POOLS[partition_for(pool, PARTITIONS)]
        await until(began + BATCH_AT)
        await self.bus.ask(
            LeaseRequested(lease_pool_id=held, request_id=f"{pool}-held", units=1, tenant=self.name),
            LeaseRenewRequested(lease_pool_id=pool, lease_id=lease.lease_id, fencing_token=lease.fencing_token),
            source=self.holder.owner,
        )
        for at in CROSSED_RENEWALS:
            await until(began + at)
            await self.holder.write(pool, lease)
            await self.holder.say("renew", pool, lease)
        await until(began + CROSSED_LAST)
        await self.holder.write(pool, lease)
        await self.holder.say("renew", pool, lease)
        await self.holder.say("release", pool, lease)
        follower = await waiting
        if follower is None:
            return
        await self.waiter.write(pool, follower)
        await self.holder.write(pool, lease)  # too late, as the resource can tell
        await self.waiter.say("release", pool, follower)
        again = await self.wait(self.holder, pool, f"{pool}-3", 1.0)
        if again is not None:
            await self.stranger.say("renew", pool, again)
            await self.holder.say("renew", pool, again, token=lease.fencing_token)
            await self.holder.say("release", pool, again, token=lease.fencing_token)
            await self.holder.say("release", pool, again)

    async def renew_late(self, began: float) -> None:
        """A lease's deadline passes while nothing about leases can be written, and its holder renews it then. Either it
        lives on, or it is lost and another's: not both."""
        await until(began + LATE_AT)
        pool = self.late
        lease = (await self.holder.acquire(pool, f"{pool}-1")).lease
        if lease is None:
            return
        waiting = asyncio.create_task(self.wait(self.waiter, pool, f"{pool}-2", 3.0))
        for at in LATE_RENEWALS:
            await until(began + at)
            await self.holder.say("renew", pool, lease)
            await self.holder.write(pool, lease)
        follower = await waiting
        if follower is not None:
            await self.waiter.write(pool, follower)

    async def wait(self, actor: Actor, pool: str, request_id: str, seconds: float, units: int = 1) -> Lease | None:
        """Ask again and again under one id; the lease, unless none came in time."""
        end_at = monotonic_seconds() + seconds
        while (left := end_at - monotonic_seconds()) > 0:
            call = await actor.acquire(pool, request_id, units, wait_seconds=min(left, 1.0))
            if call.lease is not None or call.answer == "refused":
                return call.lease
            await asyncio.sleep(0.02)
        return None

    async def change_limits(self, end_at: float) -> None:
        """Of the shared pool: down and up, and drained for a while."""
        while monotonic_seconds() < end_at:
            await asyncio.sleep(self.rng.uniform(0.3, 0.8))
            if self.rng.random() < 0.3:
                await self.operator.drain(self.shared)
                await asyncio.sleep(self.rng.uniform(0.2, 0.5))
                await self.operator.drain(self.shared, "undrain")
            else:
                await self.operator.limit(self.shared, self.rng.randint(1, UNITS + 1))

    # The end

    async def settle(self) -> None:
        """Every limit is again as it was, whatever was lost on the way."""
        for _ in range(20):
            if (await self.operator.drain(self.shared, "undrain")).answer == "ok" and (
                await self.operator.limit(self.shared, UNITS)
            ).answer == "ok":
                return
            await asyncio.sleep(0.2)

    async def take_all(self, seconds: float) -> None:
        """Ask for everything there is, in every pool, for at most so long."""

        async def take(pool: str, units: int) -> None:
            last = self.actor("last", OWNERS[0])
            lease = await self.wait(last, pool, f"{pool}-last", seconds, units)
            if lease is not None:
                await last.say("release", pool, lease)

        await asyncio.gather(*(take(pool, units) for pool, units in self.limits.items()))

    def history(self, quiet_at: float, journals: Sequence[Call]) -> History:
        """All that was seen of its pools; `journals` are of the processes that histories share."""
        mine = [call for call in journals if call.pool in self.limits]
        return History(
            limits=self.limits, calls=[*calls(self.lines), *mine, *self.asker.calls],
            ended=self.bus.ended(list(self.limits)),
            writes=[write for write in self.system.resource.writes if write.pool in self.limits],
            skew_seconds=SKEW_SECONDS, quiet_at=quiet_at,
        )  # fmt: skip


async def until(at: float) -> None:
    await asyncio.sleep(max(0.0, at - monotonic_seconds()))
