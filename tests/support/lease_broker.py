"""A lease-broker without Kafka and HTTP, for tests: real handlers, loop and store on a real database, with a clock set
by the test."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final

import msgspec

from slipway_api.events.lease import (
    LeaseCancelRequested,
    LeaseConfirmRequested,
    LeaseGranted,
    LeaseReleaseRequested,
    LeaseRenewRequested,
    LeaseRequested,
)
from slipway_api.events.topics import DECODERS, LEASE_REQUEST
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection, Database
from slipway_common.messaging import outbox
from slipway_common.messaging.records import Received
from slipway_common.web.runtime import Runtime
from slipway_lease_broker.admission import Admissions
from slipway_lease_broker.domain import declaration
from slipway_lease_broker.domain.commands import apply_command
from slipway_lease_broker.domain.declaration import Declaration, Declared
from slipway_lease_broker.domain.exchange import Submission
from slipway_lease_broker.domain.ledger import Gang
from slipway_lease_broker.domain.reception import Receiving
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.terms import BrokerTerms, Policy
from slipway_lease_broker.grant_waiters import GrantWaiters
from slipway_lease_broker.handlers.requests import LeaseCommandHandler
from slipway_lease_broker.loops.decide import DecideLoop
from slipway_lease_broker.loops.gangs import GangLoop
from slipway_lease_broker.store import gangs, pools
from slipway_lease_broker.store.retention import RETENTION
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support import harness
from tests.support.databases import connected, empty_database
from tests.support.retention import prune_all

SERVICE = "lease-broker"
PROVISIONER: Final = "provisioner"  # source and owner of its commands
START = datetime(2026, 1, 1, 12, tzinfo=UTC)
# Part of a policy, refused in declarations, with which every decision about a launch fails.
UNDECIDABLE: Final = '{"operations": {"launch": {"max_wait_seconds": 1e300}}}'
NOT_RECEIVING: Final = Receiving(kafka=None, http=None, reads=False)
TERMS: Final = BrokerTerms(
    lost_linger_seconds=70,
    waiter_ttl_seconds=100_000,  # requests in tests are sent once, then the clock jumps
    waiting_requests_max=5_000,
    slot_expired_state="dirty",
    slot_request_ttl_seconds=30,
    proxy_wait_seconds=7200,
    open_to_all=False,
)


def admissions(
    *,
    receiving: Callable[[str], Receiving] = lambda _: Receiving(),
    waiters: GrantWaiters | None = None,
    **terms: Any,
) -> Admissions:
    """Admission transactions, as in main.py, with changed terms."""
    return Admissions(
        terms=msgspec.structs.replace(TERMS, **terms),
        receiving=receiving,
        waiters=waiters or GrantWaiters(lambda _: None),
        runtime=Runtime(),
    )


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def terms(name: str = "sim-a", limit: int = 5, **changes: Any) -> Declared:
    """Terms of a lease pool, without pacing by default."""
    fields: dict[str, Any] = {"hold_seconds": 1200, "ttl_seconds": 300, "reserve_seconds": 180}
    return Declared(id=name, limit_units=limit, **(fields | {"policy": Policy(pacing="off")} | changes))


def acquire_request(
    request_id: str, units: int = 1, pool: str = "sim-a", *, tenant: str = "linux", **fields: Any
) -> LeaseRequested:
    return LeaseRequested(lease_pool_id=pool, request_id=request_id, units=units, tenant=tenant, **fields)


def cancel(request_id: str, units: int = 1, pool: str = "sim-a") -> LeaseCancelRequested:
    return LeaseCancelRequested(lease_pool_id=pool, request_id=request_id, units=units, reason="demand fell")


def confirm(grant: LeaseGranted) -> LeaseConfirmRequested:
    return LeaseConfirmRequested(
        lease_pool_id=grant.lease_pool_id, lease_id=grant.lease_id, fencing_token=grant.fencing_token
    )


def renew(grant: LeaseGranted, progress: str | None = None) -> LeaseRenewRequested:
    return LeaseRenewRequested(
        lease_pool_id=grant.lease_pool_id, lease_id=grant.lease_id, fencing_token=grant.fencing_token, progress=progress
    )


def release(
    grant: LeaseGranted, units: int | None = None, *, result: str = "registered", **evidence: Any
) -> LeaseReleaseRequested:
    return LeaseReleaseRequested(
        lease_pool_id=grant.lease_pool_id,
        lease_id=grant.lease_id,
        fencing_token=grant.fencing_token,
        units=units or grant.units,
        result=result,
        **evidence,
    )


def received(command: Any, offset: int) -> Received:
    return Received(
        event=command,
        type=command.type,
        id=new_id(),
        source=PROVISIONER,
        subject=LEASE_REQUEST.subject(command),
        time=START,
        sequence_number=offset,
        revision=None,
        topic=LEASE_REQUEST.name,
        partition=0,
        offset=offset,
    )


class Broker:
    """Sends commands to the broker, lets it decide, and reads the published events."""

    def __init__(self, pool: Database) -> None:
        self.pool = pool
        self.offsets = count()
        self.receiving = Receiving()
        self._seen_event = 0
        self._started: list[asyncio.Task[Any]] = []
        self.use()

    def use(self, **terms: Any) -> None:
        """Start another process, with these terms."""
        self.admissions = admissions(receiving=lambda _: self.receiving, **terms)
        self.handler = LeaseCommandHandler(self.admissions, at_once_max=0)
        self.loop = DecideLoop(self.admissions)

    async def declare(self, *wanted: Declared) -> None:
        async with self.pool.acquire() as db, db.transaction():
            whole = Declaration(owners=frozenset({""}), pools=wanted)
            changes = declaration.compare(await pools.declared(db), whole)
            changed = [made for made in changes if made.result != "unchanged"]
            await pools.declare(db, [made.after for made in changed])
            await outbox.enqueue(db, declaration.limit_events(changed, "test"))

    async def send(self, *commands: Any) -> None:
        async with self.pool.acquire() as db, db.transaction():
            await self.send_in(db, *commands)

    async def send_in(self, tx: Connection, *commands: Any) -> None:
        committed = await self.handler.handle(tx, [received(command, next(self.offsets)) for command in commands])
        committed()

    async def submit(self, command: Any) -> None:
        """Send a command over HTTP."""
        await self.admissions.submit(
            self.pool,
            command.lease_pool_id,
            [Submission(command=command, sender=Sender(name=PROVISIONER))],
            at_once=True,
        )

    async def request_gang(self, name: str, **units: int) -> None:
        """Request so many units of each lease pool, all at once."""
        async with self.pool.acquire() as db, db.transaction():
            await self.request_gang_in(db, name, **units)

    async def request_gang_in(self, tx: Connection, name: str, **units: int) -> None:
        commands = [acquire_request(name, wanted, pool, whole=True) for pool, wanted in units.items()]
        admission = admissions().begin(tx)
        await admission.lock(units)
        now = admission.now
        await gangs.add(
            tx, Gang(id=name, owner=PROVISIONER, size=len(commands), requested_at=now, last_requested_at=now)
        )
        sender = Sender(name=PROVISIONER)
        ledger = await admission.load([Submission(command=command, sender=sender) for command in commands])
        for command in commands:
            apply_command(ledger, command, now, sender, gang_id=name)
        await admission.decide_gang(name)

    async def decide(self) -> int:
        """Decide until nothing is due; returns the number of decisions."""
        for made in range(100):
            if not await self.loop.step(self.pool):
                return made
        raise AssertionError("a lease pool stays due forever")

    async def try_gangs(self) -> bool:
        """Decide for all pools, then once for each gang that had its turn."""
        await self.decide()
        return await GangLoop(self.admissions).step(self.pool)

    async def events(self) -> list[Any]:
        """Events enqueued since the last call, in order; dead letters are left out."""
        rows = await self.pool.fetch("SELECT id, type, value FROM outbox WHERE id > $1 ORDER BY id", self._seen_event)
        self._seen_event = rows[-1]["id"] if rows else self._seen_event
        return [DECODERS[row["type"]].decode(row["value"]) for row in rows if row["type"] in DECODERS]

    async def grants(self) -> list[LeaseGranted]:
        """Decide, and return the grants."""
        await self.decide()
        return [event for event in await self.events() if isinstance(event, LeaseGranted)]

    async def prune(self, **kept_days: float) -> None:
        await prune_all(self.pool, RETENTION, **kept_days)

    async def set_clock(self, seconds: float) -> None:
        await self.pool.execute("UPDATE test_clock SET at = $1", after(seconds))

    async def held(self, lease_pool_id: str = "sim-a") -> int:
        units: int = await self.pool.fetchval(
            "SELECT coalesce(sum(units), 0) FROM leases WHERE lease_pool_id = $1 AND ended_at IS NULL", lease_pool_id
        )
        return units

    def start(self, step: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a step beside the test; it is cancelled if the test fails."""
        self._started.append(asyncio.create_task(step))
        return self._started[-1]

    async def stop(self) -> None:
        """Cancel what was started."""
        for task in self._started:
            task.cancel()
        await asyncio.gather(*self._started, return_exceptions=True)

    async def until_waiting(self, *tasks: asyncio.Task[Any]) -> None:
        """Wait until each of these waits for a lock."""
        await harness.until_waiting(self.pool, *tasks)


@contextlib.asynccontextmanager
async def broker_on(server: EmbeddedPostgres) -> AsyncIterator[Broker]:
    """A broker on an empty database of its own."""
    async with empty_database(server, SERVICE) as url, connected(url, SERVICE) as database:
        broker = Broker(database)
        try:
            yield broker
        finally:
            await broker.stop()


def kinds(events: Sequence[Any]) -> list[str]:
    return [type(event).__name__ for event in events]


def names(grants: Sequence[LeaseGranted]) -> list[str]:
    return [grant.request_id for grant in grants]
