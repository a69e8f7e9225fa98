"""The Kafka side of a history: lease commands, each record sent twice, and the events that the lease-broker
publishes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from slipway_api.events.lease import (
    LeaseConfirmed,
    LeaseConfirmRequested,
    LeaseExpired,
    LeaseGranted,
    LeaseLost,
    LeaseReleased,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
)
from slipway_api.events.topics import DECODERS, LEASE_LIFECYCLE, LEASE_REQUEST
from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.ids import new_id
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.relay import partition_for
from tests.histories.history import EVER, Call, Ended, Lease

SOURCE: Final = "/histories"
TWICE: Final = 2
BATCH_BYTES: Final = 500_000
ANSWER_SECONDS: Final = 3.0


class Bus:
    """One producer and one consumer for all histories of a run. `events` are all events read, with the instant."""

    def __init__(self, bootstrap: str, prefix: str, partitions: int) -> None:
        self.events: list[tuple[float, Any]] = []
        self._prefix = prefix
        self._partitions = partitions
        self._producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=1, max_batch_size=BATCH_BYTES
        )
        self._consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        self._news = asyncio.Condition()
        # Deadlines are published by the database's wall clock, which is this machine's.
        self._wall = utc_now().timestamp() - monotonic_seconds()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Bus"]:
        await self._producer.start()
        await self._consumer.start()
        topic = self._prefix + LEASE_LIFECYCLE.name
        self._consumer.assign([TopicPartition(topic, number) for number in range(self._partitions)])
        reading = asyncio.create_task(self._read())
        try:
            yield self
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await self._consumer.stop()
            await self._producer.stop()

    async def _read(self) -> None:
        async for record in self._consumer:
            headers = dict(record.headers)
            decoder = DECODERS.get(headers.get("ce_type", b"").decode())
            if decoder is not None and record.value is not None:
                async with self._news:
                    self.events.append((monotonic_seconds(), decoder.decode(record.value)))
                    self._news.notify_all()

    def monotonic(self, at: datetime) -> float:
        """A published deadline, by the machine's monotonic clock."""
        return at.timestamp() - self._wall

    async def send(self, *commands: Any, source: str = SOURCE) -> None:
        """Send these commands in order, one batch per partition, every record twice, like a producer that got no
        answer. The requests belong to the `source`."""
        batches: dict[int, Any] = {}
        for command in commands:
            partition = partition_for(LEASE_REQUEST.key(command), self._partitions)
            batch = batches.setdefault(partition, self._producer.create_batch())
            envelope = Envelope(
                id=new_id(), type=command.type, source=source, subject=LEASE_REQUEST.subject(command), time=utc_now()
            )
            for _ in range(TWICE):
                kept = batch.append(
                    key=LEASE_REQUEST.key(command).encode(),
                    value=msgspec.json.encode(command),
                    timestamp=None,
                    headers=encode(envelope),
                )
                assert kept is not None, "the batch is full"
        topic = self._prefix + LEASE_REQUEST.name
        for partition, batch in batches.items():
            await (await self._producer.send_batch(batch, topic, partition=partition))

    async def wait_for_event(self, begin: int, wanted: Callable[[Any], bool]) -> tuple[float, Any] | None:
        """The first wanted event from index `begin` on; None when none came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS), self._news:
                while True:
                    for at, event in self.events[begin:]:
                        if wanted(event):
                            return at, event
                    begin = len(self.events)
                    await self._news.wait()
        return None

    def ended(self, pools: Sequence[str]) -> list[Ended]:
        """The published ends of leases of these pools."""
        found = []
        for at, event in self.events:
            reason = end_reason(event)
            if reason and event.lease_pool_id in pools:
                found.append(Ended(at=at, pool=event.lease_pool_id, lease_id=event.lease_id, reason=reason))
        return found


class KafkaClient:
    """A client that uses Kafka only: requests units, which may be granted in parts, and uses each part."""

    def __init__(self, name: str, bus: Bus, pool: str) -> None:
        self.name = name
        self.bus = bus
        self.pool = pool
        self.calls: list[Call] = []
        self._requests = 0

    async def once(self, units: int) -> None:
        """Make one request: every lease it gets is confirmed, renewed and released."""
        self._requests += 1
        request_id = f"{self.name}-{self._requests}"
        begin = len(self.bus.events)
        request = self._call("acquire", request_id=request_id, units=units)
        place = len(self.calls)
        self.calls.append(request)
        command = LeaseRequested(lease_pool_id=self.pool, request_id=request_id, units=units, tenant=self.name)
        await self.bus.send(command, command)  # repeated in a record of its own: it still waits
        granted, seen = 0, set[str]()
        while granted < units:
            news = await self.bus.wait_for_event(
                begin, lambda event: granted_to(request_id, event) and event.lease_id not in seen
            )
            if news is None:
                return
            at, grant = news
            seen.add(grant.lease_id)
            granted += grant.units
            answered = self._answered(request, at, grant, grant.units, grant.expires_at)
            if len(seen) == 1:
                self.calls[place] = answered
            else:
                self.calls.append(answered)
            await self._use(grant)

    async def _use(self, grant: LeaseGranted) -> None:
        names: dict[str, Any] = {
            "lease_pool_id": self.pool,
            "lease_id": grant.lease_id,
            "fencing_token": grant.fencing_token,
        }
        until = grant.expires_at
        for does, command in (("confirm", LeaseConfirmRequested(**names)), ("renew", LeaseRenewRequested(**names))):
            begin = len(self.bus.events)
            call = self._call(does, lease_id=grant.lease_id, fencing_token=grant.fencing_token)
            await self.bus.send(command)
            news = await self.bus.wait_for_event(begin, partial(is_extended, grant.lease_id, until))
            if news is None:
                self.calls.append(call)
                break
            until = news[1].expires_at
            self.calls.append(self._answered(call, news[0], grant, grant.units, until))
        self.calls.append(
            self._call("release", lease_id=grant.lease_id, fencing_token=grant.fencing_token, units=grant.units)
        )
        await self.bus.send(LeaseReleaseRequested(**names, units=grant.units, result="registered"))

    def _call(self, does: Any, **fields: Any) -> Call:
        return Call(
            client=self.name,
            owner=self.name,
            does=does,
            pool=self.pool,
            invoked=monotonic_seconds(),
            returned=EVER,
            **fields,
        )

    def _answered(self, call: Call, at: float, grant: LeaseGranted, units: int, expires_at: Any) -> Call:
        lease = Lease(
            lease_id=grant.lease_id,
            fencing_token=grant.fencing_token,
            units=units,
            seconds_left=self.bus.monotonic(expires_at) - call.invoked,
        )
        return msgspec.structs.replace(call, returned=at, answer="ok", lease=lease)


def granted_to(request_id: str, event: Any) -> bool:
    return isinstance(event, LeaseGranted) and event.request_id == request_id


def is_extended(lease_id: str, until: datetime, event: Any) -> bool:
    """True if a lease lives longer than was known; an answer that was published twice adds nothing."""
    return isinstance(event, LeaseConfirmed) and event.lease_id == lease_id and event.expires_at > until


def end_reason(event: Any) -> str:
    """The reason in an event about the end of a lease; empty for other events."""
    match event:
        case LeaseExpired():
            return "expired"
        case LeaseLost():
            return "lost"
        case LeaseReleased(remaining=0, reason="hold" | "no-progress" | "replaced" as reason):
            return str(reason)
        case LeaseReleased(remaining=0):
            return "released"
    return ""
