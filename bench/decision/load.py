"""Changes of demand at a steady rate, and when each was decided and its call received by the simulated provider.

A change is a report of one more waiting task in a pool, which asks for one machine. Of a pool, change k has been
decided once k machines have been requested, and received once the calls in the simulator's ledger ask for k machines:
changes that share a decision share a call.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaProducer

from bench.decision.cell import DAY_SECONDS, SOURCE
from slipway_api.events.pool import DemandReported
from slipway_api.events.topics import POOL_DEMAND
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.relay import partition_for
from slipway_simulator import facts

SETTLE_SECONDS: Final = 10.0
"""Time without the end of a change after which those that are left count as lost."""
KILLED_SETTLE_SECONDS: Final = 75.0
"""The same after a kill: calls that the killed process had begun are resolved after their time-out of 60 s."""
BACKLOG_SECONDS: Final = 90.0  # for all of them, where the machine is too slow for the load


class Change(msgspec.Struct, frozen=True):
    """A reported change. Times are those of the clock of the machine, in seconds; None: it never was."""

    pool_id: str
    partition: int
    observed_at: float
    decided_at: float | None = None
    received_at: float | None = None


class Reporter:
    """Reports changes to Kafka like the monitor of a queue."""

    def __init__(
        self, producer: AIOKafkaProducer, topic: str, partitions: int, claimed: Mapping[str, int], rng: Random
    ) -> None:
        self.changes: list[Change] = []
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._claimed = claimed
        self.pending = dict.fromkeys(claimed, 0)
        self._pools = rng.sample(list(claimed), len(claimed))

    async def report(self, per_second: float, until: Callable[[float], bool]) -> None:
        """Report changes of one pool after another at a rate, whatever happens to them, `until` so many seconds."""
        began = time.monotonic()
        acknowledged: list[Awaitable[Any]] = []
        number = 0
        while not until(number / per_second):
            await asyncio.sleep(max(0.0, began + number / per_second - time.monotonic()))
            acknowledged.append(await self._report(self._pools[number % len(self._pools)]))
            number += 1
        await asyncio.gather(*acknowledged)

    async def _report(self, pool_id: str) -> Any:
        self.pending[pool_id] += 1
        at = utc_now()
        event = DemandReported(
            pool_id=pool_id,
            source=SOURCE,
            pending=self.pending[pool_id],
            claimed=self._claimed[pool_id],
            observed_at=at,
            valid_for_seconds=DAY_SECONDS,
        )
        key = POOL_DEMAND.key(event)
        partition = partition_for(key, self._partitions)
        self.changes.append(Change(pool_id, partition, at.timestamp()))
        envelope = Envelope(
            id=new_id(), type=event.type, source="/bench/monitor", subject=POOL_DEMAND.subject(event), time=at
        )
        return await self._producer.send(
            self._topic,
            msgspec.json.encode(event),
            key=key.encode(),
            partition=partition,
            headers=encode(envelope),
        )


def traced(
    changes: Sequence[Change], requested: Iterable[tuple[str, float]], received: Iterable[tuple[str, float]]
) -> list[Change]:
    """Changes with their times, from the machines requested and received as (pool id, time)."""
    decided, arrived = _by_pool(requested), _by_pool(received)
    numbers: dict[str, int] = defaultdict(int)
    found = []
    for change in changes:
        number = numbers[change.pool_id]
        numbers[change.pool_id] += 1
        found.append(
            msgspec.structs.replace(
                change,
                decided_at=_nth(decided[change.pool_id], number),
                received_at=_nth(arrived[change.pool_id], number),
            )
        )
    return found


def machines(played: Iterable[facts.Fact], pool_of: Mapping[str, str]) -> list[tuple[str, float]]:
    """Pool and time of each machine for which a create call was received, once for each token."""
    tokens: set[str] = set()
    found = []
    for fact in played:
        if isinstance(fact, facts.Call) and fact.token not in tokens:
            tokens.add(fact.token)
            found += [(pool_of[fact.config], fact.at)] * fact.count
    return found


def doubled(changes: Sequence[Change], received: Iterable[tuple[str, float]]) -> int:
    """Machines received above those that the changes ask for."""
    asked = {pool_id: 0 for pool_id, _ in received} | _counts(change.pool_id for change in changes)
    arrived = _counts(pool_id for pool_id, _ in received)
    return sum(max(0, arrived.get(pool_id, 0) - number) for pool_id, number in asked.items())


def _counts(pool_ids: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for pool_id in pool_ids:
        counts[pool_id] += 1
    return counts


def _by_pool(machines_: Iterable[tuple[str, float]]) -> Mapping[str, list[float]]:
    times: dict[str, list[float]] = defaultdict(list)
    for pool_id, at in machines_:
        times[pool_id].append(at)
    for each in times.values():
        each.sort()
    return times


def _nth(times: Sequence[float], number: int) -> float | None:
    return times[number] if number < len(times) else None
