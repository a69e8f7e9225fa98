"""One history: what happens in its own lease pools while a round of histories shares the system and its faults.

Most of it is random. Four things happen in every history, because they need a precise order: a lease is confirmed on
Kafka in a batch that waits for another pool's lock, and meanwhile renewed over HTTP; a lease is renewed late while a
slow replica lets it expire; a former holder sends commands under its old token, and another client under the right one.
The first two involve all histories of a round at once: `cross` and `renew_late` are their parts of it.
"""

import asyncio
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Final

from slipway_api.events.lease import LeaseConfirmRequested, LeaseRequested
from slipway_common.base.clock import monotonic_seconds
from slipway_common.messaging.relay import partition_for
from tests.histories.actor import Actor
from tests.histories.bus import Bus, KafkaClient
from tests.histories.clients import Worker
from tests.histories.history import Call, History, Lease
from tests.histories.journal import Journal, calls
from tests.histories.system import OPERATOR, OWNERS, PARTITIONS, System

TTL_SECONDS: Final = 0.8
SKEW_SECONDS: Final = 0.05
HOLDER, WAITER, STRANGER = OWNERS
TERMS: Final[dict[str, Any]] = {
    "hold_seconds": 4.0,
    "ttl_seconds": TTL_SECONDS,
    "reserve_seconds": 0.6,
    "lock_delay_seconds": 0.0,
    "pacing": "off",
    "backoff": None,
}
POLL_SECONDS: Final = 0.3
JUMP_WITHIN_SECONDS: Final = 8.0
UNITS: Final = 3  # of the pool that is shared
# The row of a pool that a Kafka batch names first is locked. Seconds after that: when the batch is sent, how long the
# row is locked, and when the lease that the batch confirms is renewed over HTTP, last after its deadline in the batch.
BATCH_AFTER: Final = 0.2
HELD_SECONDS: Final = 2.2
CROSSED_TTL_SECONDS: Final = 2.0
CROSSED_RENEWALS: Final = (0.0, 0.7, 1.4, 2.0, 3.6)
# Seconds after a slow replica has locked pools: until it decides, when a deadline has passed; until it commits;
# and when the lease whose deadline has passed is renewed.
DECIDED_AFTER: Final = TTL_SECONDS + 0.1
COMMITTED_AFTER: Final = DECIDED_AFTER + 0.5
LATE_RENEWALS: Final = (DECIDED_AFTER + 0.2, COMMITTED_AFTER + 0.2)
# The grants after them may be noticed late.
RESERVE_SECONDS: Final = 2.0
# The locked pools, one for each partition of the requests; their ids sort first, so that they are locked first.
HELD_POOLS: Final = [
    next(name for name in (f"a-held-{number}" for number in range(100)) if partition_for(name, PARTITIONS) == wanted)
    for wanted in range(PARTITIONS)
]


class Play:
    """One history of a round. Its pools: `alone` and `shared` for clients in processes of their own, `late` and
    `crossed` for what happens in every history, `kafka` for a client that uses Kafka only."""

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
        self.kafka_client = KafkaClient(f"{name}-kafka", bus, self.kafka)
        self.operator = self.actor("operator", OPERATOR)
        self.holder, self.waiter = self.actor("holder", HOLDER), self.actor("waiter", WAITER)
        self.stranger = self.actor("stranger", STRANGER)

    def actor(self, name: str, owner: str) -> Actor:
        """A client in this process whose answers are not dropped."""
        return Actor(
            f"{self.name}-{name}",
            owner=owner,
            secret=self.system.secrets[owner],
            ports=self.system.ports,
            journal=self.journal,
            rng=self.rng,
            resource=self.system.resource_port,
        )

    def declared(self) -> list[dict[str, Any]]:
        pools = [TERMS | {"id": pool, "limit": limit} for pool, limit in self.limits.items()]
        own = {
            self.crossed: {"ttl_seconds": CROSSED_TTL_SECONDS, "reserve_seconds": RESERVE_SECONDS},
            self.late: {"reserve_seconds": RESERVE_SECONDS},
        }
        return [pool | own.get(pool["id"], {}) for pool in pools]

    def workers(self, group: str) -> Iterator[Worker]:
        """Clients of this history in one process, whose clocks jump."""
        for pool, units in ((self.alone, 1), (self.shared, UNITS - 1)):
            owner = self.rng.choice(OWNERS)
            jump = monotonic_seconds() + self.rng.uniform(0, JUMP_WITHIN_SECONDS), self.rng.uniform(-1.0, 1.0)
            yield Worker(
                name=f"{pool}-{group}",
                owner=owner,
                secret=self.system.secrets[owner],
                pool=pool,
                units=units,
                ttl_seconds=TTL_SECONDS,
                jumps=[jump],
            )

    async def play(self, over: asyncio.Event) -> None:
        """Play the random part."""
        await asyncio.gather(self.change_limits(over), self.request_over_kafka(over))

    async def request_over_kafka(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self.kafka_client.once(self.rng.randint(1, 3))
            await asyncio.sleep(self.rng.uniform(0.05, 0.3))

    # What happens in every history

    async def acquire(self, pool: str) -> Lease | None:
        """Acquire the lease that its holder has at the beginning."""
        return await self.wait(self.holder, pool, f"{pool}-1", 3.0)

    def batch(self, lease: Lease) -> list[Any]:
        """Commands of one batch: one for a pool whose lock is held, then a confirm. By the clock at the begin of the
        batch the confirm would shorten the life of the lease after the renewals that overtook it; it must not."""
        pool = self.crossed
        held = HELD_POOLS[partition_for(pool, PARTITIONS)]
        return [
            LeaseRequested(lease_pool_id=held, request_id=f"{pool}-held", units=1, tenant=self.name),
            LeaseConfirmRequested(lease_pool_id=pool, lease_id=lease.lease_id, fencing_token=lease.fencing_token),
        ]

    async def cross(self, lease: Lease, began: float) -> None:
        """Renew over HTTP the lease that the batch confirms, which must not shorten its life. Then a former holder and
        another client send commands."""
        pool = self.crossed
        waiting = asyncio.create_task(self.wait(self.waiter, pool, f"{pool}-2", 6.0))
        for after in CROSSED_RENEWALS:
            await until(began + after)
            await self.holder.write(pool, lease)
            await self.holder.send("renew", pool, lease)
        await self.holder.send("release", pool, lease)
        follower = await waiting
        if follower is None:
            return
        await self.waiter.write(pool, follower)
        await self.holder.write(pool, lease)  # too late, which the resource detects
        await self.waiter.send("release", pool, follower)
        again = await self.wait(self.holder, pool, f"{pool}-3", 1.0)
        if again is not None:
            await self.stranger.send("renew", pool, again)
            await self.holder.send("renew", pool, again, token=lease.fencing_token)
            await self.holder.send("release", pool, again, token=lease.fencing_token)
            await self.holder.send("release", pool, again)

    async def renew_late(self, lease: Lease, began: float) -> None:
        """Renew a lease while the decision that ends it has not committed yet. Either it lives on, or it is lost and
        granted to another: not both."""
        pool = self.late
        waiting = asyncio.create_task(self.wait(self.waiter, pool, f"{pool}-2", 3.0))
        for after in LATE_RENEWALS:
            await until(began + after)
            await self.holder.send("renew", pool, lease)
            await self.holder.write(pool, lease)
        follower = await waiting
        if follower is not None:
            await self.waiter.write(pool, follower)

    async def wait(self, actor: Actor, pool: str, request_id: str, seconds: float, units: int = 1) -> Lease | None:
        """Repeat a request under one id; returns the lease, unless none came in time."""
        end_at = monotonic_seconds() + seconds
        while (left := end_at - monotonic_seconds()) > 0:
            call = await actor.acquire(pool, request_id, units, wait_seconds=min(left, POLL_SECONDS))
            if call.lease is not None or call.answer == "refused":
                return call.lease
            await asyncio.sleep(0.02)
        return None

    async def change_limits(self, over: asyncio.Event) -> None:
        """Change the limit of the shared pool down and up, and drain it for a while."""
        while not over.is_set():
            await asyncio.sleep(self.rng.uniform(0.3, 0.8))
            if self.rng.random() < 0.3:
                await self.operator.drain(self.shared)
                await asyncio.sleep(self.rng.uniform(0.2, 0.5))
                await self.operator.drain(self.shared, "undrain")
            else:
                await self.operator.limit(self.shared, self.rng.randint(1, UNITS + 1))

    # The end

    async def settle(self) -> None:
        """Restore every limit, whatever was lost on the way."""
        for _ in range(20):
            undrained = await self.operator.drain(self.shared, "undrain")
            await self.operator.limit(self.shared, UNITS - 1)  # a limit of 1 may only be doubled at once
            restored = await self.operator.limit(self.shared, UNITS)
            if undrained.answer == restored.answer == "ok":
                return
            await asyncio.sleep(0.2)

    async def take_all(self, seconds: float) -> None:
        """Acquire everything in every pool, for at most that time."""

        async def take(pool: str, units: int) -> None:
            last = self.actor("last", HOLDER)
            lease = await self.wait(last, pool, f"{pool}-last", seconds, units)
            if lease is not None:
                await last.send("release", pool, lease)

        await asyncio.gather(*(take(pool, units) for pool, units in self.limits.items()))

    def history(self, quiet_at: float, journals: Sequence[Call]) -> History:
        """All observations in its pools; `journals` are of the processes that histories share."""
        mine = [call for call in journals if call.pool in self.limits]
        return History(
            limits=self.limits,
            calls=[*calls(self.lines), *mine, *self.kafka_client.calls],
            ended=self.bus.ended(list(self.limits)),
            writes=[write for write in self.system.resource.writes if write.pool in self.limits],
            skew_seconds=SKEW_SECONDS,
            quiet_at=quiet_at,
        )


async def until(at: float) -> None:
    await asyncio.sleep(max(0.0, at - monotonic_seconds()))
