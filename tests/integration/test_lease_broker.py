"""The lease-broker on a real database: commands, decisions and published events."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import msgspec
import pytest
import yaml
from fastapi import FastAPI

from slipway_common.base.errors import BadEvent, Transient
from slipway_common.base.ids import hash_secret, new_id
from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.events.lease import (
    LeaseConfirmed,
    LeaseExpired,
    LeaseGranted,
    LeaseGroup,
    LeaseLimitChanged,
    LeaseLost,
    LeaseQueued,
    LeaseReleased,
    LeaseReleaseRequested,
    LeaseUnleasedReported,
    ReplacedLease,
)
from slipway_common.events.topics import LEASE_REQUEST
from slipway_common.messaging.consume import Consumer, Owned, apply
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.records import Record
from slipway_common.web import problem
from slipway_common.web.access import Tokens
from slipway_common.web.runtime import Runtime
from slipway_lease_broker import admission
from slipway_lease_broker.admission import AdmissionTx
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.exchange import Exchange
from slipway_lease_broker.domain.pacing import Pacing
from slipway_lease_broker.domain.reception import Downtime, Receiving
from slipway_lease_broker.domain.report import PastLease
from slipway_lease_broker.domain.terms import Backoff, Bounds, Derived, Mode, Operation, Policy
from slipway_lease_broker.grant_waiters import GrantWaiters
from slipway_lease_broker.handlers.requests import LeaseCommandHandler
from slipway_lease_broker.http import lease_pools, leases
from slipway_lease_broker.loops.gangs import GangLoop
from slipway_lease_broker.metrics import UNDECIDED
from slipway_lease_broker.progress import RequestProgress
from slipway_lease_broker.store import answers, gangs, history, past_leases, pools, reception, requests
from slipway_lease_broker.store import leases as store_leases
from slipway_lease_broker.store import terms as store_terms
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.lease_broker import (
    NOT_RECEIVING,
    SERVICE,
    START,
    UNDECIDABLE,
    Broker,
    acquire_request,
    admissions,
    after,
    broker_on,
    cancel,
    confirm,
    received,
    release,
    renew,
    terms,
)


@pytest.fixture
async def broker(postgres: EmbeddedPostgres) -> AsyncIterator[Broker]:
    async with broker_on(postgres) as broker:
        await broker.declare(terms())
        await broker.events()
        yield broker


def kinds(events: Sequence[Any]) -> list[str]:
    return [type(event).__name__ for event in events]


async def test_from_request_to_release(broker: Broker) -> None:
    """Granted, confirmed, renewed, released in two parts: each step is published, and the units are free again."""
    await broker.send(acquire_request("r", 3))
    (lease,) = await broker.grants()
    assert (lease.units, lease.fencing_token, lease.expires_at, lease.hold_until) == (3, 1, after(180), after(1200))
    await broker.set_clock(100)
    await broker.send(confirm(lease))
    await broker.set_clock(350)
    await broker.send(renew(lease))
    await broker.send(release(lease, 2))
    assert await broker.held() == 1
    await broker.send(release(lease, 1))
    assert await broker.held() == 0
    common = {"lease_pool_id": "sim-a", "lease_id": lease.lease_id}
    assert await broker.events() == [
        LeaseConfirmed(**common, fencing_token=1, expires_at=after(400)),
        LeaseConfirmed(**common, fencing_token=1, expires_at=after(650)),
        LeaseReleased(**common, request_id="r", units=2, remaining=1, reason="registered"),
        LeaseReleased(**common, request_id="r", units=1, remaining=0, reason="registered"),
    ]
    await broker.set_clock(10_000)
    await broker.decide()
    assert await broker.events() == []


async def test_a_batch_is_decided_in_its_transaction(broker: Broker) -> None:
    """Without the loop; the process gets the decision once it is committed."""
    decided: list[Decision] = []

    class Waiters(GrantWaiters):
        def committed(self, decisions: Iterable[Decision], exchanges: Iterable[Exchange] = ()) -> None:
            decided.extend(decisions)

    command_handler = LeaseCommandHandler(admissions(waiters=Waiters(lambda _: None)))
    async with broker.pool.acquire() as db, db.transaction():
        afterwards = await command_handler.handle(
            db, [received(acquire_request("r1", 4), 1), received(acquire_request("r2", 2), 2)]
        )
        assert not decided
    afterwards()
    assert [lease.request_id for decision in decided for lease in decision.granted] == ["r1", "r2"]
    assert kinds(await broker.events()) == ["LeaseGranted", "LeaseGranted", "LeaseQueued"]
    assert await broker.decide() == 0


async def test_a_request_in_the_batch_of_a_release_passes_no_other(broker: Broker) -> None:
    """Units released by a batch go to waiting requests, not to the requests of that batch."""
    command_handler = LeaseCommandHandler(admissions())
    async with broker.pool.acquire() as db:
        async with db.transaction():
            await command_handler.handle(
                db, [received(acquire_request("r1", 5), 1), received(acquire_request("r2", 1), 2)]
            )
        (held, _) = await broker.events()
        async with db.transaction():
            commands = [received(release(held, 1), 3), received(acquire_request("r3", 1), 4)]
            await command_handler.handle(db, commands)
    published = await broker.events()
    assert {type(event): event.request_id for event in published} == {
        LeaseReleased: "r1",
        LeaseGranted: "r2",
        LeaseQueued: "r3",
    }


async def test_commands_outlive_a_failed_decision(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are not dead-lettered for it: on the retry they are recorded, and their pool is left to the loop."""

    class Failing(AdmissionTx):
        async def decide(self, *_: Any, **__: Any) -> None:
            raise KeyError("a mistake in the rules")

    monkeypatch.setattr(admission, "AdmissionTx", Failing)
    command_handler = LeaseCommandHandler(admissions())
    async with broker.pool.acquire() as db, db.transaction():
        with pytest.raises(KeyError):
            await command_handler.handle(db, [received(acquire_request("r", 2), 1)])
        (again,) = await asyncio.gather(
            command_handler.handle(db, [received(acquire_request("r", 2), 1)]), return_exceptions=True
        )
    assert callable(again)
    monkeypatch.undo()
    assert [lease.units for lease in await broker.grants()] == [2]


async def test_a_pool_is_left_to_the_loop_for_a_while(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not forever, since a single command may have caused the failure."""
    fails = True

    class Failing(AdmissionTx):
        async def decide(self, *arguments: Any, **named: Any) -> None:
            if fails:
                raise KeyError("a mistake in the rules")
            await super().decide(*arguments, **named)

    monkeypatch.setattr(admission, "AdmissionTx", Failing)
    command_handler = LeaseCommandHandler(admissions())
    async with broker.pool.acquire() as db:
        with pytest.raises(KeyError):
            async with db.transaction():
                await command_handler.handle(db, [received(acquire_request("r1"), 1)])
        fails = False
        for offset, seconds, granted in ((2, 29, []), (3, 31, ["r2", "r3"])):
            await broker.set_clock(seconds)
            async with db.transaction():
                await command_handler.handle(db, [received(acquire_request(f"r{offset}"), offset)])
            assert [event.request_id for event in await broker.events() if isinstance(event, LeaseGranted)] == granted


async def test_an_unleased_launch_is_not_counted_in_another_pool(broker: Broker) -> None:
    """Under the id of a live lease of that pool; also with a lease of the same batch."""
    await broker.declare(terms(), terms("sim-b"))
    await broker.send(acquire_request("r"))
    (lease,) = await broker.grants()
    charged = LeaseUnleasedReported(
        lease_pool_id="sim-b",
        lease_id=lease.lease_id,
        request_id="u",
        operation="launch",
        units=1,
        started_at=START,
        tenant="t",
    )
    await broker.send(charged, acquire_request("other", pool="sim-b"))
    assert names(await broker.grants()) == ["other"]
    assert await broker.held("sim-b") == 1


async def test_groups_of_other_terms_are_other_groups(broker: Broker) -> None:
    """A request that uses the name of a group with other terms does not delay its starts."""
    await broker.send(acquire_request("stranger", group=LeaseGroup(name="payload", size=1, spread_seconds=86_400)))
    own = LeaseGroup(name="payload", size=10, spread_seconds=900)
    await broker.send(
        *(acquire_request(f"m{member}", group=msgspec.structs.replace(own, member=member)) for member in (0, 9))
    )
    assert names(await broker.grants()) == ["stranger", "m0"]
    await broker.set_clock(810)
    assert names(await broker.grants()) == ["m9"]


async def test_partial_grants_in_order_of_arrival(broker: Broker) -> None:
    """The head of the queue gets the free units and waits for the rest, and no other passes it; each part is a lease
    with its own token."""
    await broker.send(acquire_request("r1", 7), acquire_request("r2", 1))
    await broker.decide()
    first, queued1, queued2 = await broker.events()
    assert (first.request_id, first.units) == ("r1", 5)
    assert queued1 == LeaseQueued(lease_pool_id="sim-a", request_id="r1", units=2, position=1)
    assert queued2 == LeaseQueued(lease_pool_id="sim-a", request_id="r2", units=1, position=2)
    await broker.set_clock(30)
    await broker.send(release(first, 1))
    (second,) = await broker.grants()
    assert (second.request_id, second.units, second.fencing_token, second.waited_seconds) == ("r1", 1, 2, 30)
    await broker.send(release(first, 4))
    assert [(g.request_id, g.units, g.fencing_token) for g in await broker.grants()] == [("r1", 1, 3), ("r2", 1, 4)]


async def test_a_repeated_request_grants_nothing_more(broker: Broker) -> None:
    """Granted or ended: it is answered with the lease that it has, and only `last_requested_at` changes."""
    await broker.send(acquire_request("r", 2))
    (lease,) = await broker.grants()
    await broker.set_clock(30)
    await broker.send(acquire_request("r", 2), acquire_request("r", 9))
    assert [(grant.lease_id, grant.units) for grant in await broker.grants()] == [(lease.lease_id, 2)] * 2
    await broker.send(release(lease))
    await broker.send(acquire_request("r", 2))
    assert await broker.grants() == []
    assert await broker.pool.fetchval("SELECT count(*) FROM leases") == 1
    row = await broker.pool.fetchrow("SELECT * FROM requests")
    assert (row["requested_units"], row["waiting_units"], row["requested_at"], row["last_requested_at"]) == (
        2,
        0,
        START,
        after(30),
    )


async def test_unconfirmed_leases_expire(broker: Broker) -> None:
    """At the reserve deadline the full capacity is free again; a later confirm revives nothing and gets LeaseLost."""
    await broker.send(acquire_request("r1", 5), acquire_request("r2", 1))
    (lease,) = await broker.grants()
    await broker.set_clock(179.9)
    assert await broker.decide() == 0
    await broker.set_clock(180)
    await broker.decide()
    expired, granted = await broker.events()
    assert expired == LeaseExpired(lease_pool_id="sim-a", lease_id=lease.lease_id, request_id="r1", units=5)
    assert (granted.request_id, granted.fencing_token) == ("r2", 2)
    await broker.send(confirm(lease))
    assert kinds(await broker.events()) == ["LeaseLost"]
    assert await broker.held() == 1


async def test_lost_leases_stay_counted(broker: Broker) -> None:
    """A holder that stopped renewing may have a call in flight: its units are free only after the linger."""
    await broker.send(acquire_request("r1", 5), acquire_request("r2", 1))
    (lease,) = await broker.grants()
    await broker.send(confirm(lease))
    await broker.events()
    await broker.set_clock(300)
    await broker.decide()
    (lost,) = await broker.events()
    assert lost == LeaseLost(
        lease_pool_id="sim-a", lease_id=lease.lease_id, request_id="r1", units=5, counted_until=after(370)
    )
    await broker.send(renew(lease), release(lease))
    assert await broker.events() == [lost]
    await broker.set_clock(369)
    assert await broker.grants() == []
    assert await broker.held() == 5
    await broker.set_clock(370)
    assert [grant.request_id for grant in await broker.grants()] == ["r2"]
    assert await broker.held() == 1


async def test_a_late_renewal_before_the_expiry_committed(broker: Broker) -> None:
    """It counts: a lease lives until its expiry has committed."""
    await broker.send(acquire_request("r"))
    (lease,) = await broker.grants()
    await broker.send(confirm(lease))
    await broker.set_clock(301)
    await broker.send(renew(lease))
    await broker.decide()
    assert kinds(await broker.events()) == ["LeaseConfirmed", "LeaseConfirmed"]


async def test_the_hold_ends_a_lease_whatever_its_renewals(broker: Broker) -> None:
    """The broker releases it."""
    await broker.send(acquire_request("r"))
    (lease,) = await broker.grants()
    await broker.send(confirm(lease))
    for seconds in range(250, 1200, 250):
        await broker.set_clock(seconds)
        await broker.send(renew(lease))
        await broker.decide()
    published = await broker.events()
    assert set(kinds(published)) == {"LeaseConfirmed"}
    assert published[-1].expires_at == after(1200)
    await broker.set_clock(1200)
    await broker.decide()
    assert await broker.events() == [
        LeaseReleased(
            lease_pool_id="sim-a", lease_id=lease.lease_id, request_id="r", units=1, remaining=0, reason="hold"
        )
    ]


async def test_no_deadline_passes_before_the_requests_are_read(broker: Broker) -> None:
    """After a start or take-over renewals may be waiting unread; free units are granted meanwhile."""
    await broker.send(acquire_request("r1", 4))
    (lease,) = await broker.grants()
    await broker.send(confirm(lease))
    await broker.events()
    broker.receiving = NOT_RECEIVING
    await broker.set_clock(1000)
    assert await broker.decide() == 0
    await broker.send(acquire_request("r2", 2))
    assert [(grant.request_id, grant.units) for grant in await broker.grants()] == [("r2", 1)]
    await broker.send(renew(lease))
    broker.receiving = Receiving()
    await broker.decide()
    assert kinds(await broker.events()) == ["LeaseConfirmed"]
    await broker.set_clock(1180)
    await broker.decide()
    assert kinds(await broker.events()) == ["LeaseExpired", "LeaseGranted"]


async def test_leases_live_while_the_broker_does_not_read_kafka(broker: Broker) -> None:
    """A lease renewed over Kafka gets the time in which its renewals could not be read; the end of its hold passes, and
    a lease held over HTTP ends as always."""
    await broker.send(acquire_request("r1", 2))
    (lease,) = await broker.grants()
    await broker.send(confirm(lease))
    await broker.submit(acquire_request("r2", 2))
    await broker.events()
    broker.receiving = Receiving(kafka=None)
    await broker.set_clock(1000)
    await broker.decide()
    assert [(type(event).__name__, event.request_id) for event in await broker.events()] == [("LeaseExpired", "r2")]
    assert await broker.held() == 2
    assert await broker.decide() == 0, "a pool with leases that are held back is not decided again at once"
    broker.receiving = Receiving(kafka=[Downtime(after(100), after(1000))])
    await broker.decide()
    assert await broker.events() == []
    await broker.set_clock(1199)  # 299 s without the downtime
    await broker.decide()
    assert await broker.events() == []
    assert await broker.held() == 2
    broker.receiving = Receiving(kafka=None)
    await broker.set_clock(1200)
    await broker.decide()
    assert kinds(await broker.events()) == ["LeaseReleased"]


async def test_a_lease_that_is_not_renewed_ends_after_a_downtime(broker: Broker) -> None:
    """The postponed deadline passes, and one renewed after the downtime is not postponed."""
    await broker.send(acquire_request("r1", 1), acquire_request("r2", 1))
    first, second = await broker.grants()
    await broker.send(confirm(first), confirm(second))
    await broker.set_clock(200)
    broker.receiving = Receiving(kafka=[Downtime(after(100), after(200))])
    await broker.send(renew(second))
    await broker.events()
    await broker.set_clock(399)
    await broker.decide()
    assert await broker.events() == []
    await broker.set_clock(400)  # 300 s after its confirmation, without the downtime
    await broker.decide()
    assert [(type(event).__name__, event.request_id) for event in await broker.events()] == [("LeaseLost", "r1")]
    await broker.set_clock(500)
    await broker.decide()
    assert [(type(event).__name__, event.request_id) for event in await broker.events()] == [("LeaseLost", "r2")]


async def test_deadlines_of_a_pool_that_nobody_reads(broker: Broker) -> None:
    """Another process lets those pass that no command over Kafka could move, but only after the reader had its turn."""
    await broker.submit(acquire_request("r1", 1))
    await broker.events()
    broker.receiving = Receiving(kafka=None, reads=False)
    await broker.set_clock(185)
    assert await broker.decide() == 0
    await broker.set_clock(195)
    await broker.decide()
    assert kinds(await broker.events()) == ["LeaseExpired"]


async def test_a_restored_database_holds_its_leases(broker: Broker) -> None:
    """For one TTL nothing expires, however long ago the deadline was, and nothing is granted; a renewal extends its
    lease. Then the lease that nobody renewed ends, and fencing tokens are above all those of the lost time."""
    await broker.send(acquire_request("a", 3), acquire_request("b", 1))
    first, second = await broker.grants()
    await broker.send(confirm(first), confirm(second))
    await broker.decide()
    await broker.events()
    await broker.set_clock(400)
    async with broker.pool.acquire() as db, db.transaction():
        await store_terms.restored(db, 2**50)
    await broker.send(acquire_request("c"), renew(second))
    await broker.decide()
    await broker.set_clock(699)
    await broker.send(renew(second))
    await broker.decide()
    assert {"LeaseGranted", "LeaseLost", "LeaseExpired"}.isdisjoint(kinds(await broker.events()))
    assert await broker.held() == 4
    await broker.set_clock(700)
    await broker.decide()
    lost, granted = await broker.events()
    assert (lost.lease_id, granted.request_id) == (first.lease_id, "c")
    assert granted.fencing_token == 2**50 + 1
    await broker.set_clock(770)
    await broker.decide()
    assert await broker.held() == 2


async def test_a_database_that_was_not_compared_decides_nothing(broker: Broker) -> None:
    """Commands are tried again later, and none is lost."""
    await broker.pool.execute("UPDATE incarnation SET server = 'another'")
    with pytest.raises(Transient):
        await broker.send(acquire_request("a"))
    assert await broker.pool.fetchval("SELECT count(*) FROM requests") == 0
    await broker.pool.execute("UPDATE incarnation SET server = slipway_server()")
    await broker.send(acquire_request("a"))
    assert len(await broker.grants()) == 1


async def test_cancel_ends_a_wait(broker: Broker) -> None:
    """Granted units stay; the rest of the queue moves up."""
    await broker.send(acquire_request("r1", 7), acquire_request("r2", 2))
    (lease,) = await broker.grants()
    await broker.send(cancel("r1", 9), release(lease, 1))
    assert [(grant.request_id, grant.units) for grant in await broker.grants()] == [("r2", 1)]


async def test_lowering_the_limit_revokes_nothing(broker: Broker) -> None:
    """Nothing is granted until usage has fallen. Raising it grants at once."""
    await broker.send(acquire_request("r1", 5), acquire_request("r2", 3))
    (lease,) = await broker.grants()
    await broker.declare(terms(limit=2))
    assert await broker.grants() == []
    assert await broker.held() == 5
    await broker.send(release(lease, 3))
    assert await broker.grants() == []
    await broker.send(release(lease, 1))
    assert [grant.units for grant in await broker.grants()] == [1]
    await broker.declare(terms(limit=9))
    assert [grant.units for grant in await broker.grants()] == [2]


async def test_pools_do_not_wait_for_each_other(broker: Broker) -> None:
    """Each has its limit, its queue and its tokens; a decision concerns one pool."""
    await broker.declare(terms("a", 1), terms("b", 1))
    await broker.send(acquire_request("r1", 1, "a"), acquire_request("r2", 1, "a"), acquire_request("r1", 1, "b"))
    assert await broker.decide() == 3  # the archived first pool is due as well
    published = [event for event in await broker.events() if isinstance(event, LeaseGranted)]
    assert sorted((grant.lease_pool_id, grant.request_id, grant.fencing_token) for grant in published) == [
        ("a", "r1", 1),
        ("b", "r1", 1),
    ]


async def test_a_batch_finds_its_rows_by_their_keys(broker: Broker) -> None:
    """Also in a table of a few thousand rows, which a join would read whole for each batch."""
    await broker.declare(terms("sim-a", 10_000))
    await broker.send(*(acquire_request(f"r{number}") for number in range(2_000)))
    await broker.decide()
    await broker.pool.execute("ANALYZE requests, leases")
    ids = [f"new-{number}" for number in range(50)]
    for statement, given in (
        (requests.LOCK, {"lease_pool_id": ["sim-a"] * len(ids), "id": ids}),
        (requests.NAMED, {"lease_pool_id": ["sim-a"] * len(ids), "id": ids}),
        (answers.OF_REQUESTS, {"pool": "sim-a", "requests": ids}),
        (store_leases.NAMED, {"ids": ids}),
    ):
        plan = await broker.pool.fetch(f"EXPLAIN {statement.text}", *statement.arguments(**given))
        lines = "\n".join(row[0] for row in plan)
        assert "Index Cond" in lines
        assert "Seq Scan" not in lines


async def test_a_pool_with_failing_decisions_stops_no_other(broker: Broker) -> None:
    """It is postponed and counted, has a reason, and recovers by itself."""
    await broker.declare(terms(), terms("sim-b", policy=Policy()))
    await broker.send(acquire_request("b", pool="sim-b"), acquire_request("a"))
    await broker.pool.execute(f"UPDATE lease_pools SET policy = policy || '{UNDECIDABLE}' WHERE id = 'sim-b'")
    counted = UNDECIDED.labels("sim-b")._value.get()
    assert names(await broker.grants()) == ["a"]
    assert UNDECIDED.labels("sim-b")._value.get() == counted + 1
    reason = "SELECT reason FROM lease_pools WHERE id = 'sim-b'"
    assert (await broker.pool.fetchval(reason)).startswith("decision failed: OverflowError")
    await broker.pool.execute("UPDATE lease_pools SET policy = policy - 'operations' WHERE id = 'sim-b'")
    assert await broker.grants() == []
    await broker.set_clock(30)
    assert names(await broker.grants()) == ["b"]


async def test_a_gang_with_failing_decisions_stops_no_other(broker: Broker) -> None:
    """It is counted, and tried again later at its old place."""
    await broker.declare(terms(), terms("sim-b", 1), terms("sim-c", 1, policy=Policy()))
    await broker.send(acquire_request("b", pool="sim-b"), acquire_request("c", pool="sim-c"))
    b, c = await broker.grants()
    await broker.request_gang("broken", **{"sim-a": 1, "sim-c": 1})
    await broker.request_gang("fine", **{"sim-a": 1, "sim-b": 1})
    await broker.send(release(b), release(c))
    await broker.decide()
    await broker.pool.execute(f"UPDATE lease_pools SET policy = policy || '{UNDECIDABLE}' WHERE id = 'sim-c'")
    counted = UNDECIDED.labels("sim-c")._value.get()
    loop = GangLoop(broker.admissions)
    assert await loop.step(broker.pool) is True
    assert names(await broker.grants()) == ["fine", "fine"]
    assert UNDECIDED.labels("sim-c")._value.get() == counted + 1
    await broker.pool.execute("UPDATE lease_pools SET policy = policy - 'operations', paces = '{}' WHERE id = 'sim-c'")
    assert await loop.step(broker.pool) is False
    await broker.set_clock(30)
    assert await loop.step(broker.pool) is True
    assert names(await broker.grants()) == ["broken", "broken"]


async def test_an_undeclared_pool_is_a_data_error(broker: Broker) -> None:
    """The record is dead-lettered, the rest of its batch is applied, and the stream moves on."""
    with pytest.raises(BadEvent, match="nowhere"):
        await broker.send(acquire_request("r", 1, "nowhere"))
    bad = [
        acquire_request("r2", 1, "nowhere"),
        acquire_request("r\0"),
        acquire_request("r3", 2**70),
        acquire_request("r4", 0),
        acquire_request("x" * 3000),
    ]
    commands = [acquire_request("r1"), *bad, acquire_request("r5")]
    records = [
        Record(
            LEASE_REQUEST.name,
            0,
            offset,
            LEASE_REQUEST.key(command).encode(),
            _json(command),
            encode(_envelope(command, offset)),
            0,
        )
        for offset, command in enumerate(commands)
    ]
    async with broker.pool.acquire() as db:
        await db.execute("INSERT INTO consumed VALUES ($1, 0, 1, 0, 'c')", LEASE_REQUEST.name)
        await apply(db, Consumer(SERVICE, LEASE_REQUEST, broker.handler.handle), Owned(1, 0), records)
    assert [grant.request_id for grant in await broker.grants()] == ["r1", "r5"]
    dead = await broker.pool.fetch('SELECT "offset", state FROM dead_letter ORDER BY 1')
    assert [(row["offset"], row["state"]) for row in dead] == [(n, "dead") for n in range(1, 6)]


def _json(command: Any) -> bytes:
    return msgspec.json.encode(command)


def _envelope(command: Any, number: int) -> Envelope:
    return Envelope(
        id=new_id(),
        type=command.type,
        source="provisioner",
        subject=f"s{number}",
        time=START,
        sequence_number=number + 1,
        previous=number,
    )


async def test_a_burst_is_decided_in_few_transactions(broker: Broker) -> None:
    """200 requests and 200 grants cost one transaction each way, whatever their number."""
    await broker.declare(terms(limit=200))
    await broker.send(*(acquire_request(f"r{n}") for n in range(200)))
    assert await broker.decide() == 1
    grants = [event for event in await broker.events() if isinstance(event, LeaseGranted)]
    assert [grant.request_id for grant in grants] == [f"r{n}" for n in range(200)]
    await broker.send(*(confirm(grant) for grant in grants))
    await broker.send(*(release(grant) for grant in grants))
    assert await broker.held() == 0


# Policies


async def declared(broker: Broker, policy: Policy, **changes: Any) -> None:
    await broker.declare(terms(policy=policy, **changes))
    await broker.events()


def names(grants: Sequence[LeaseGranted]) -> list[str]:
    return [grant.request_id for grant in grants]


async def test_pacing_goes_on_from_decision_to_decision(broker: Broker) -> None:
    """A single job starts at once, the next when its interval has passed, by the clock alone."""
    await declared(broker, Policy())
    await broker.send(acquire_request("r1", 2))
    assert [grant.units for grant in await broker.grants()] == [1]
    await broker.set_clock(29.9)
    assert await broker.grants() == []
    await broker.set_clock(30)
    assert [grant.units for grant in await broker.grants()] == [1]


async def test_operations_are_paced_each_by_itself(broker: Broker) -> None:
    """Stored by operation: launches wait for no installation, and each goes on from decision to decision."""
    await declared(broker, Policy(operations={"launch": Operation(pacing=Pacing(0.5))}))
    await broker.send(*(acquire_request(name, operation="install") for name in ("i1", "i2")))
    assert names(await broker.grants()) == ["i1"]
    await broker.send(*(acquire_request(f"l{n}") for n in range(3)))
    assert names(await broker.grants()) == ["l0"]
    await broker.set_clock(0.5)
    assert names(await broker.grants()) == ["l1"]
    await broker.set_clock(30)
    assert names(await broker.grants()) == ["i2", "l2"]


async def test_a_new_mode_starts_with_fresh_pacing(broker: Broker) -> None:
    """A shadow pool computes how long its starts would have waited; enforcing delays no request for that."""
    await declared(broker, Policy(mode=Mode.SHADOW))
    await broker.send(*(acquire_request(f"r{n}") for n in range(9)))
    shadowed = await broker.grants()
    assert [(grant.mode, grant.advised_wait_seconds, grant.reason) for grant in shadowed] == [("shadow", None, "")] * 9
    rows = await broker.pool.fetch("SELECT advised_wait_seconds FROM leases ORDER BY fencing_token")
    assert [row[0] for row in rows] == [None, 30, 60, 90, 120, 240, 480, 720, 960]
    await broker.send(*(release(grant) for grant in shadowed))
    await declared(broker, Policy())
    await broker.send(acquire_request("r10"))
    assert names(await broker.grants()) == ["r10"]


async def test_an_advisory_pool_reports_the_spared_wait(broker: Broker) -> None:
    await declared(broker, Policy(mode=Mode.ADVISORY, pacing="off"))
    await broker.send(acquire_request("r1", 5), acquire_request("r2"))
    _, spared = await broker.grants()
    assert (spared.mode, spared.advised_wait_seconds, spared.reason) == ("advisory", 240, "5 of 5 held")
    assert await broker.held() == 6


async def test_costs_by_operation(broker: Broker) -> None:
    """Counted by their cost, also when they are released in part."""
    await declared(broker, Policy(pacing="off", operations={"launch": Operation(weight=2)}))
    await broker.send(acquire_request("r1", 3))
    (lease,) = await broker.grants()
    assert lease.units == 2
    assert await broker.pool.fetchval("SELECT held FROM lease_pools") == {"launch": 4}
    await broker.send(release(lease, 1))
    assert [grant.units for grant in await broker.grants()] == [1]
    await broker.send(acquire_request("d", operation="destroy"))
    assert names(await broker.grants()) == ["d"]
    assert await broker.pool.fetchval("SELECT held FROM lease_pools") == {"launch": 4, "destroy": 1}


async def test_a_new_attempt_replaces_the_old(broker: Broker) -> None:
    """The old lease ends as the new request arrives, which inherits its age: no other request passes in between."""
    await broker.send(acquire_request("r1", 5))
    (lease,) = await broker.grants()
    await broker.set_clock(10)
    await broker.send(acquire_request("other", 5))
    await broker.decide()
    await broker.set_clock(20)
    old = ReplacedLease(lease_id=lease.lease_id, fencing_token=lease.fencing_token)
    await broker.send(acquire_request("r2", 5, replaces=old))
    assert await broker.held() == 0
    assert names(await broker.grants()) == ["r2"]
    row = await broker.pool.fetchrow("SELECT state, reason FROM leases WHERE id = $1", lease.lease_id)
    assert tuple(row) == ("released", "replaced")
    stale = ReplacedLease(lease_id=lease.lease_id, fencing_token=9)
    await broker.send(acquire_request("r3", replaces=stale))
    assert await broker.pool.fetchval("SELECT since FROM requests WHERE id = 'r3'") == after(20)


async def test_a_group_starts_anew(broker: Broker) -> None:
    """With a name and terms that were used before, after its spread is over: its members start spread again."""
    await broker.declare(terms(limit=20))
    day = 86_400
    nightly = LeaseGroup(name="nightly", size=4, spread_seconds=3600)
    await broker.send(acquire_request("r0", group=nightly), acquire_request("r1", group=nightly))
    assert names(await broker.grants()) == ["r0"]
    await broker.set_clock(day)
    await broker.grants()
    await broker.set_clock(2 * day)
    await broker.send(*(acquire_request(f"w{number}", group=nightly) for number in range(3)))
    assert names(await broker.grants()) == ["w0"]
    await broker.send(acquire_request("w3", group=nightly))
    rows = await broker.pool.fetch("SELECT since FROM requests WHERE group_name <> '' ORDER BY place")
    assert [row["since"] for row in rows[-4:]] == [after(2 * day + seconds) for seconds in (0, 900, 1800, 2700)]


async def test_a_request_is_known_for_as_long_as_its_lease(broker: Broker) -> None:
    """However old the request: the same id is never granted twice."""
    await broker.declare(terms(hold_seconds=20 * 86_400, ttl_seconds=20 * 86_400))
    await broker.send(acquire_request("r"))
    (lease,) = await broker.grants()
    await broker.send(confirm(lease))
    await broker.set_clock(9 * 86_400)
    await broker.prune()
    await broker.send(acquire_request("r"))
    assert [grant.lease_id for grant in await broker.grants()] == [lease.lease_id]
    assert await broker.held() == 1


async def test_a_lapsed_request_is_pruned(broker: Broker) -> None:
    """While lapsed it raises no alert and keeps no gang from being tried, and it is deleted like all old requests."""
    broker.use(waiter_ttl_seconds=100)
    await broker.declare(terms(), terms("sim-b"))
    await broker.send(acquire_request("full", 5, "sim-b"))
    await broker.request_gang("gone", **{"sim-a": 1, "sim-b": 1})
    await broker.decide()
    async with broker.pool.acquire() as db:
        assert await gangs.ready(db) == ["gone"]
    await broker.set_clock(110)
    await broker.pool.execute("UPDATE lease_pools SET dirty = true")
    await broker.decide()
    async with broker.pool.acquire() as db:
        assert await gangs.ready(db) == []
        assert {row.id: row.oldest_wait_seconds for row in await pools.overview(db)} == {"sim-a": None, "sim-b": None}
    await broker.set_clock(9 * 86_400)
    await broker.prune()
    assert await broker.pool.fetchval("SELECT count(*) FROM requests WHERE id = 'gone'") == 0
    assert await broker.pool.fetchval("SELECT count(*) FROM gangs") == 0


async def test_a_gang_reserves_units_only_while_it_could_start(broker: Broker) -> None:
    """Its reserved units go to others once one of its pools is drained; afterwards it has its old place."""
    await broker.declare(terms("sim-a", 2), terms("sim-b", 1))
    await broker.send(acquire_request("b", pool="sim-b"))
    (b,) = await broker.grants()
    await broker.request_gang("g", **{"sim-a": 2, "sim-b": 1})
    await broker.send(acquire_request("r1"))
    assert not await broker.try_gangs()
    assert await broker.grants() == [], "its units are kept while it waits for its turn elsewhere"

    await broker.pool.execute("UPDATE lease_pools SET drained_reason = 'maintenance', dirty = true WHERE id = 'sim-b'")
    assert not await broker.try_gangs()
    (r1,) = await broker.grants()
    assert r1.request_id == "r1"
    assert not await broker.try_gangs()
    assert await broker.decide() == 0, "it is not looked at again and again"

    await broker.pool.execute("UPDATE lease_pools SET drained_reason = NULL, dirty = true WHERE id = 'sim-b'")
    await broker.send(acquire_request("r2"), release(b))
    assert not await broker.try_gangs()
    assert await broker.grants() == [], "r2 came later"
    await broker.send(release(r1))
    assert await broker.try_gangs()
    assert names(await broker.grants()) == ["g", "g"]


async def test_a_gang_that_requests_too_much_reserves_nothing(broker: Broker) -> None:
    """Until a limit allows it."""
    await broker.declare(terms("sim-a", 2), terms("sim-b", 1))
    await broker.request_gang("g", **{"sim-a": 1, "sim-b": 2})
    await broker.send(acquire_request("r", 2))
    (r,) = await broker.grants()
    assert (r.request_id, r.units) == ("r", 2)
    reason = await broker.pool.fetchval("SELECT reason FROM history WHERE kind = 'queued' AND lease_pool_id = 'sim-a'")
    assert reason == "its gang cannot start in sim-b: requests 2 units, more than the limit of 1 allows: as declared"
    await broker.send(release(r))
    assert not await broker.try_gangs()
    await broker.declare(terms("sim-a", 2), terms("sim-b", 2))
    assert await broker.try_gangs()
    assert names(await broker.grants()) == ["g", "g"]


async def test_others_start_behind_many_that_request_too_much(broker: Broker) -> None:
    """Also of the same tenant, and without useless decisions."""
    await broker.send(
        *(acquire_request(f"n{n}", 6, whole=True) for n in range(40)),
        acquire_request("own"),
        acquire_request("other", tenant="mac"),
    )
    assert sorted(names(await broker.grants())) == ["other", "own"]
    assert await broker.decide() == 0


async def test_no_request_stays_hidden_with_many_queues(broker: Broker) -> None:
    """With many queues few requests are read of each; if all of them are skipped, more are read."""
    others = (acquire_request(f"o{n}", 6, whole=True, tenant=f"t{n}") for n in range(130))
    await broker.send(
        *others,
        *(acquire_request(f"n{n}", 6, whole=True) for n in range(40)),
        acquire_request("own"),
        acquire_request("next"),
    )
    assert names(await broker.grants()) == ["own", "next"]
    assert await broker.decide() == 0


async def test_tenants_and_groups_are_pruned(broker: Broker) -> None:
    """Once they have no effect: not while they decide the next grant, a backoff, or the start of a member."""
    while_ = 8_640.0
    group = LeaseGroup(name="g", size=2, spread_seconds=10 * while_)
    await broker.declare(terms(limit=4, policy=Policy(pacing="off", backoff=Backoff(seconds=60))))
    await broker.send(
        acquire_request("m", 1, tenant="grouped", group=group),
        acquire_request("f", 1, tenant="failed"),
        acquire_request("s", 2, tenant="served"),
    )
    by_request = {grant.request_id: grant for grant in await broker.grants()}
    assert len(by_request) == 3
    await broker.send(release(by_request["f"], result="failed"), release(by_request["m"], result="done"))
    await broker.send(
        *(acquire_request(f"x{n}", 3, tenant="served", whole=True) for n in range(2)),
        acquire_request("y", 3, whole=True),
    )
    assert await broker.grants() == []

    async def remembered() -> tuple[list[str], list[str]]:
        await broker.prune(ended_kept_days=0.8)
        tenants = await broker.pool.fetch("SELECT tenant FROM tenants ORDER BY tenant")
        groups = await broker.pool.fetch("SELECT name FROM groups")
        return [row["tenant"] for row in tenants], [row["name"] for row in groups]

    assert await remembered() == (["failed", "served"], ["g (2 in 86400 s)"])
    await broker.send(release(by_request["s"]))
    assert names(await broker.grants()) == ["y"], "the other was served before"
    await broker.set_clock(9 * while_)
    assert await remembered() == (["served"], ["g (2 in 86400 s)"])
    await broker.set_clock(11 * while_)
    assert await remembered() == (["served"], [])


async def test_an_old_attempt_makes_one_request_old(broker: Broker) -> None:
    """Of the same tenant and operation; otherwise a former holder could pass all others with any request."""
    await broker.send(acquire_request("r1", 5))
    (lease,) = await broker.grants()
    old = ReplacedLease(lease_id=lease.lease_id, fencing_token=lease.fencing_token)
    await broker.set_clock(20)
    await broker.send(
        acquire_request("destroy", operation="destroy", replaces=old),
        acquire_request("mac", tenant="mac", replaces=old),
    )
    assert await broker.held() == 0, "its holder released it, whatever follows"
    await broker.send(acquire_request("r2", replaces=old))
    await broker.send(acquire_request("r3", replaces=old))
    rows = await broker.pool.fetch("SELECT id, since FROM requests WHERE id <> 'r1' ORDER BY place")
    assert [tuple(row) for row in rows] == [
        ("destroy", after(20)),
        ("mac", after(20)),
        ("r2", after(0)),
        ("r3", after(20)),
    ]


async def test_a_holder_without_progress_is_lost(broker: Broker) -> None:
    """However often it renews; its units stay counted for the lock delay of its pool."""
    await declared(broker, Policy(pacing="off", no_progress_seconds=100, lock_delay_seconds=7))
    await broker.send(acquire_request("r"))
    (lease,) = await broker.grants()
    await broker.send(confirm(lease), renew(lease, "1 of 3"))
    await broker.set_clock(60)
    await broker.send(renew(lease, "2 of 3"))
    await broker.set_clock(159)
    await broker.send(renew(lease, "2 of 3"))
    await broker.decide()
    assert kinds(await broker.events()) == ["LeaseConfirmed"] * 4
    await broker.set_clock(160)
    await broker.decide()
    (lost,) = await broker.events()
    assert isinstance(lost, LeaseLost)
    assert lost.counted_until == after(167)
    assert await broker.pool.fetchval("SELECT reason FROM leases") == "no-progress"


async def test_a_lapsed_request_is_skipped(broker: Broker) -> None:
    """Its wait is not awaited: the next request gets its unit. Once it is repeated it has its old place."""
    broker.use(waiter_ttl_seconds=100)
    await broker.send(acquire_request("r1", 5))
    (lease,) = await broker.grants()
    await broker.send(acquire_request("dead", 5))
    await broker.set_clock(60)
    await broker.send(acquire_request("alive", 1))
    await broker.set_clock(110)
    await broker.send(release(lease, 1))
    assert names(await broker.grants()) == ["alive"]
    assert await broker.pool.fetchval("SELECT waiting_requests FROM lease_pools") == 0
    await broker.send(acquire_request("dead", 5), acquire_request("late", 1), release(lease, 4))
    assert [(grant.request_id, grant.units) for grant in await broker.grants()] == [("dead", 4)]


async def test_a_failing_tenant_backs_off(broker: Broker) -> None:
    """Its units are free at once for others; it may start again after its backoff, which a success ends."""
    await broker.send(acquire_request("r1", 5, tenant="broken"))
    (lease,) = await broker.grants()
    await broker.send(
        acquire_request("r2", 1, tenant="broken"),
        acquire_request("s1", 1, tenant="sound"),
        release(lease, 4, result="failed"),
    )
    assert names(await broker.grants()) == ["s1"]
    await broker.set_clock(30)
    assert names(await broker.grants()) == ["r2"]
    await broker.send(release(lease, 1, result="done"))
    assert await broker.pool.fetchval("SELECT failures FROM tenants WHERE tenant = 'broken'") == 0


async def test_a_retry_after_blocks_the_pool(broker: Broker) -> None:
    """Nothing starts before, whatever is free; then by the clock alone."""
    await broker.send(acquire_request("r1", 2))
    (lease,) = await broker.grants()
    await broker.send(acquire_request("r2"), release(lease, 1, throttled=True, retry_after_seconds=45))
    assert await broker.grants() == []
    await broker.set_clock(45)
    assert names(await broker.grants()) == ["r2"]


async def test_throttling_cuts_an_adaptive_limit(broker: Broker) -> None:
    """Once per hold, published with its cause; a pin resets it to the declared limit, which then never changes."""
    await declared(broker, Policy(pacing="off", adaptive=Bounds(floor=2, ceiling=30)), limit=20)
    await broker.send(acquire_request("r1", 20))
    (lease,) = await broker.grants()
    await broker.send(*[release(lease, 1, throttled=True)] * 15)
    await broker.decide()
    (changed,) = [event for event in await broker.events() if isinstance(event, LeaseLimitChanged)]
    assert 2 <= changed.limit < 20
    assert changed.previous_limit == 20
    assert changed.reason.startswith("limit 20 → ")
    assert "throttled" in changed.reason
    await broker.send(*[release(lease, 1, throttled=True)] * 4)
    await broker.decide()
    assert await broker.pool.fetchval("SELECT limit_in_force FROM lease_pools") == changed.limit
    await broker.pool.execute("UPDATE lease_pools SET pinned_reason = 'ratchet', dirty = true")
    await broker.decide()
    assert await broker.pool.fetchval("SELECT limit_reason FROM lease_pools") == "pinned: ratchet"
    assert await broker.pool.fetchval("SELECT limit_in_force FROM lease_pools") == 20


async def test_a_release_after_the_hold_is_recorded_once(broker: Broker) -> None:
    """Only its throttle evidence: no unit is released, its tenant does not back off, and a repetition is refused."""
    await broker.send(acquire_request("r1", 3))
    (lease,) = await broker.grants()
    await broker.send(confirm(lease))
    for seconds in range(200, 1200, 200):
        await broker.set_clock(seconds)
        await broker.send(renew(lease))
    await broker.set_clock(1200)
    await broker.decide()
    ended = await broker.pool.fetchrow("SELECT state, units, ended_at, reason FROM leases")
    assert ended["reason"] == "hold"
    await broker.events()
    await broker.set_clock(1300)
    late = release(lease, result="failed", throttled=True, retry_after_seconds=45)
    for again_after in (0, 30):
        await broker.set_clock(1300 + again_after)
        await broker.send(late, late, acquire_request(f"after {again_after}"))
        assert await broker.grants() == []
    await broker.set_clock(1345)
    assert names(await broker.grants()) == ["after 0", "after 30"]
    assert (
        await broker.pool.fetchrow("SELECT state, units, ended_at, reason FROM leases WHERE id = $1", lease.lease_id)
        == ended
    )
    assert await broker.pool.fetchval("SELECT coalesce(sum(failures), 0) FROM tenants") == 0
    published = [(entry.kind, entry.at) for entry in await history.of_lease(broker.pool, lease.lease_id)]
    assert published[-3:] == [("released", after(1200)), ("reported-late", after(1300)), ("throttled", after(1300))]


@pytest.mark.parametrize(("throttled", "limit"), [([True] * 10, 18), ([True] * 5 + [False] * 5 + [True] * 4, 20)])
async def test_an_adaptive_limit_counts_operations_that_outlast_their_hold(
    broker: Broker, throttled: list[bool], limit: int
) -> None:
    """Also of successful ones. The duration of leases is measured by released ones."""
    await declared(broker, Policy(pacing="off", adaptive=Bounds(floor=2, ceiling=30)), limit=20, ttl_seconds=1200)
    await broker.send(*(acquire_request(f"r{n}") for n in range(20)))
    grants = await broker.grants()
    await broker.send(*map(confirm, grants))
    await broker.set_clock(1200)
    await broker.decide()
    await broker.set_clock(5000)
    for _ in range(2):
        await broker.send(*(release(lease, throttled=met) for lease, met in zip(grants, throttled, strict=False)))
        await broker.decide()
    state = msgspec.json.decode(await broker.pool.fetchval("SELECT adaptive::text FROM lease_pools"))
    assert int(state["limit"]) == limit
    assert state["held_seconds"] is None


async def test_a_derived_limit_outlives_its_report_with_an_alert(broker: Broker) -> None:
    """The last value holds; one alert is raised, and resolved when reports are back."""
    await declared(broker, Policy(pacing="off", derived=Derived(per_unit=0.29)), limit=5)
    report = "UPDATE lease_pools SET derived_units = 100, derived_until = $1, dirty = true"
    await broker.pool.execute(report, after(60))
    await broker.send(acquire_request("r", 99))
    assert [grant.units for grant in await broker.grants()] == [29]
    await broker.set_clock(60)
    await broker.decide()
    (alert,) = await broker.events()
    assert isinstance(alert, AlertRaised)
    row = await broker.pool.fetchrow("SELECT limit_in_force, limit_reason FROM lease_pools")
    assert tuple(row) == (29, "derived: 0.29 × 100 units (stale report)")
    assert await broker.decide() == 0
    await broker.pool.execute(report, after(200))
    await broker.decide()
    assert [type(event) for event in await broker.events()] == [AlertResolved]


async def test_a_derived_limit_is_one_that_can_be_declared(broker: Broker) -> None:
    """Any reported number is capped, since the column has the same bound."""
    await broker.declare(terms(policy=Policy(pacing="off", derived=Derived(per_unit=9_999))))
    await broker.pool.execute("UPDATE lease_pools SET derived_units = 1000000, dirty = true")
    await broker.send(acquire_request("r"))
    assert names(await broker.grants()) == ["r"]
    assert await broker.pool.fetchval("SELECT limit_in_force FROM lease_pools") == 1_000_000


async def test_a_drained_pool_starts_nothing(broker: Broker) -> None:
    """It revokes nothing either; undrained it goes on."""
    await broker.send(acquire_request("r1", 2))
    assert names(await broker.grants()) == ["r1"]
    await broker.pool.execute("UPDATE lease_pools SET drained_reason = 'maintenance', dirty = true")
    await broker.send(acquire_request("r2"))
    assert await broker.grants() == []
    assert await broker.held() == 2
    await broker.pool.execute("UPDATE lease_pools SET drained_reason = NULL, dirty = true")
    assert names(await broker.grants()) == ["r2"]


async def test_a_request_may_shorten_its_hold(broker: Broker) -> None:
    await broker.send(acquire_request("r1", hold_seconds=60), acquire_request("r2", hold_seconds=99_999))
    assert [grant.hold_until for grant in await broker.grants()] == [after(60), after(1200)]


async def test_every_decision_has_a_line_of_history(broker: Broker) -> None:
    """With its actor; time and the broker's own decisions have none."""
    await broker.send(acquire_request("r1", 5))
    (lease,) = await broker.grants()
    await broker.send(acquire_request("r2", 1))
    await broker.decide()
    await broker.send(confirm(lease), release(lease, 4), cancel("r2"))
    await broker.set_clock(2000)
    await broker.decide()
    entries = [entry for _, entry in await history.of_pool(broker.pool, "sim-a", limit=10)]
    assert [(entry.kind, entry.reason, entry.actor) for entry in reversed(entries)] == [
        ("granted", "5 units granted to request r1", ""),
        ("queued", "5 of 5 held", ""),
        ("confirmed", "confirmed by its holder", "provisioner"),
        ("released", "4 units released: registered", "provisioner"),
        ("cancelled", "demand fell", "provisioner"),
        ("lost", f"lost, not renewed in time: 1 unit counted until {after(2070)}", ""),
    ]
    assert [entry.kind for entry in await history.of_lease(broker.pool, lease.lease_id)] == [
        "granted",
        "confirmed",
        "released",
        "lost",
    ]


async def test_past_leases_include_partial_releases(broker: Broker) -> None:
    """The final release is not part of them; partial ones pruned from the history count until the end."""
    await broker.send(acquire_request("r", 4))
    (lease,) = await broker.grants()
    for seconds, units in ((100, 1), (200, 2), (300, 1)):
        await broker.set_clock(seconds)
        await broker.send(release(lease, units))
    await broker.send(acquire_request("s", 5))
    (other,) = await broker.grants()
    await broker.set_clock(400)
    await broker.send(release(other, 2), acquire_request("t", 9))
    assert len(await broker.grants()) == 1

    async def past() -> list[PastLease]:
        async with broker.pool.acquire() as db:
            return await past_leases.since(db, "sim-a", START, limit=100)

    assert {(lease.units, lease.ended_at): lease.returned for lease in await past()} == {
        (4, after(300)): ((after(100), 1), (after(200), 2)),
        (5, None): ((after(400), 2),),
        (2, None): (),
        (7, None): (),  # waits
    }
    await broker.set_clock(450)
    await broker.pool.execute("DELETE FROM history")
    assert [lease.returned for lease in await past()] == [(), (), (), ()]


async def test_more_than_one_decision_takes_on(broker: Broker) -> None:
    """Rows that were not loaded are decided right after, in the same order."""
    await broker.declare(terms(limit=1500))
    for start in range(0, 1500, 500):
        await broker.send(*(acquire_request(f"r{n:04}") for n in range(start, start + 500)))
    assert names(await broker.grants()) == [f"r{n:04}" for n in range(1500)]
    await broker.set_clock(180)
    await broker.decide()
    assert await broker.held() == 0


# HTTP


@pytest.fixture
async def client(broker: Broker, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    tokens = [
        {"name": "ops", "sha256": hash_secret("secret"), "scopes": ["lease-pools:write", "read"]},
        {"name": "monitor", "sha256": hash_secret("other"), "scopes": ["demand:write:*"]},
    ]
    path = tmp_path / "tokens.yaml"
    path.write_text(yaml.safe_dump(tokens))
    app = FastAPI()
    problem.install(app)
    app.state.tokens = Tokens(path)
    app.state.runtime = SimpleNamespace(database=broker.pool, wake=lambda: None)
    app.include_router(lease_pools.router)
    app.include_router(leases.router)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://broker", headers={"Authorization": "Bearer secret"}
    ) as client:
        yield client


BODY = {"id": "sim-a", "limit": 5, "hold_seconds": 1200, "ttl_seconds": 300, "reserve_seconds": 180, "pacing": "off"}


def document(*lease_pools: Any, owner: str = "a.yaml") -> dict[str, Any]:
    """A declaration of one owner."""
    return {"documents": [{"owner": owner, "lease_pools": list(lease_pools)}]}


async def test_declaring_is_idempotent(broker: Broker, client: httpx2.AsyncClient) -> None:
    """The same document again changes nothing and publishes nothing."""
    first = await client.put("/lease-pools", json=document(BODY))
    assert [(item["result"], item["detail"]) for item in first.json()["items"]] == [("updated", "owner: none → a.yaml")]
    answer = (await client.put("/lease-pools", json=document(BODY))).json()
    assert {name: answer[name] for name in ("items", "unchanged", "dangers", "applied")} == {
        "items": [],
        "unchanged": 1,
        "dangers": [],
        "applied": True,
    }
    assert await broker.events() == []
    assert await broker.pool.fetchval("SELECT revision FROM lease_pools") == 2


async def test_a_dry_run_changes_nothing(broker: Broker, client: httpx2.AsyncClient) -> None:
    """Its answer is that of the real call."""
    await client.put("/lease-pools", json=document(BODY))
    wanted = document(BODY | {"limit": 9}, BODY | {"id": "new"})
    dry = (await client.put("/lease-pools", json=wanted, params={"dry_run": "true"})).json()
    assert await broker.events() == []
    real = (await client.put("/lease-pools", json=wanted, params={"reason": "more quota"})).json()
    assert (dry.pop("applied"), real.pop("applied")) == (False, True)
    assert dry == real
    assert [(item["kind"], item["id"], item["result"], item["detail"]) for item in real["items"]] == [
        ("lease pool", "new", "created", ""),
        ("lease pool", "sim-a", "updated", "limit: 5 → 9"),
    ]
    assert real["items"][1]["fields"] == {"limit": [5, 9], "revision": [2, 3]}
    assert await broker.events() == [
        LeaseLimitChanged(lease_pool_id="new", limit=5, previous_limit=None, reason="more quota"),
        LeaseLimitChanged(lease_pool_id="sim-a", limit=9, previous_limit=5, reason="more quota"),
    ]


async def test_a_pool_left_out_is_archived(broker: Broker, client: httpx2.AsyncClient) -> None:
    """Its limit drops to 0; declared again, it is reactivated with its tokens."""
    await client.put("/lease-pools", json=document(BODY))
    await broker.send(acquire_request("r1", 2))
    (lease,) = await broker.grants()
    digest = (await client.put("/lease-pools", json=document(), params={"dry_run": "true"})).json()["digest"]
    (item,) = (await client.put("/lease-pools", json=document(), params={"confirm": digest})).json()["items"]
    assert (item["result"], item["fields"]["limit"]) == ("archived", [5, 0])
    await broker.send(acquire_request("r2", 1))
    assert await broker.grants() == []
    (shown,) = (await client.get("/lease-pools")).json()["items"]
    assert (shown["archived"], shown["owner"], shown["held"], shown["waiting"]) == (True, "", 2, 1)
    await broker.send(release(lease))
    (item,) = (await client.put("/lease-pools", json=document(BODY, owner="b.yaml"))).json()["items"]
    assert item["result"] == "reactivated"
    assert [grant.fencing_token for grant in await broker.grants()] == [2]


async def test_unleased_launches_count_against_the_limit(broker: Broker) -> None:
    """Reported once or twice; nothing is granted while held and unleased units fill the limit, then one for one."""
    await broker.send(acquire_request("r1", 3))
    await broker.grants()
    published = LeaseUnleasedReported(
        lease_pool_id="sim-a", lease_id="u", request_id="u-request", units=2, tenant="linux", started_at=after(0)
    )
    await broker.send(acquire_request("r2", 4), published)
    await broker.send(published)
    assert await broker.held() == 5
    assert await broker.grants() == []
    back = LeaseReleaseRequested(lease_pool_id="sim-a", lease_id="u", fencing_token=2, units=2, result="registered")
    await broker.send(back)
    assert [(grant.request_id, grant.units) for grant in await broker.grants()] == [("r2", 2)]


async def test_pools_and_leases_are_shown(broker: Broker, client: httpx2.AsyncClient) -> None:
    """Limit, held, waiting and the longest wait, granted per minute, the expected wait of the next request, and the
    reason."""
    await broker.send(acquire_request("r1", 4), acquire_request("r2", 3))
    first, second = await broker.grants()
    (shown,) = (await client.get("/lease-pools")).json()["items"]
    assert {key: shown[key] for key in ("id", "limit", "held", "waiting", "requests", "granted_per_minute")} == {
        "id": "sim-a",
        "limit": 5,
        "held": 5,
        "waiting": 2,
        "requests": 1,
        "granted_per_minute": 5,
    }
    assert (shown["oldest_wait_seconds"], shown["eta_seconds"]) == (0, 36)
    assert shown["reason"].splitlines()[-1] == "1 request waits for 2 units: 5 of 5 held"
    await broker.set_clock(61)
    (shown,) = (await client.get("/lease-pools")).json()["items"]
    assert (shown["granted_per_minute"], shown["oldest_wait_seconds"], shown["eta_seconds"]) == (0, 61, 720)
    listed = (await client.get("/leases", params={"pool": "sim-a"})).json()["items"]
    assert [(lease["id"], lease["units"], lease["state"]) for lease in listed] == [
        (first.lease_id, 4, "reserved"),
        (second.lease_id, 1, "reserved"),
    ]
    assert listed == (await client.get("/leases")).json()["items"]


BAD_BODIES: list[Any] = [
    [BODY | {"limit": -1}],
    [BODY | {"limit": "5"}],
    [BODY | {"limit": 10**9}],
    [BODY | {"ttl_seconds": 0}],
    [BODY | {"id": "Upper Case"}],
    [BODY | {"id": "a//b"}],
    [BODY | {"surprise": 1}],
    [{"id": "sim-a"}],
    [BODY, BODY],
    {"not": "documents"},
    {"documents": [{"owner": "", "lease_pools": []}]},
    {"documents": [{"owner": "a.yaml"}]},
    {"documents": [{"owner": owner, "lease_pools": [BODY]} for owner in ("a.yaml", "b.yaml")]},
]


async def test_bad_declarations_change_nothing(broker: Broker, client: httpx2.AsyncClient) -> None:
    """One bad pool refuses the whole list."""
    good = BODY | {"id": "good", "limit": 1}
    for body in BAD_BODIES:
        sent = document(good, *body) if isinstance(body, list) else body
        answer = await client.put("/lease-pools", json=sent)
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json"), body
        assert answer.json()["type"] == "urn:slipway:problem:invalid-declaration"
    assert await broker.pool.fetchval("SELECT count(*) FROM lease_pools") == 1
    assert await broker.events() == []


async def test_writing_needs_the_scope(broker: Broker, client: httpx2.AsyncClient) -> None:
    """Without it nothing changes."""
    for header, status, slug in [
        ("", 401, "no-token"),
        ("Bearer wrong", 401, "unknown-token"),
        ("Bearer other", 403, "scope-missing"),
    ]:
        answer = await client.put("/lease-pools", json=document(), headers={"Authorization": header})
        assert (answer.status_code, answer.json()["type"]) == (status, f"urn:slipway:problem:{slug}")
    assert await broker.events() == []


async def test_leases_of_an_unknown_pool(client: httpx2.AsyncClient) -> None:
    """A typo is distinct from an empty pool."""
    answer = await client.get("/leases", params={"pool": "nowhere"})
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:slipway:problem:unknown-lease-pool")


async def test_a_process_that_is_cut_off_receives_nothing_over_kafka(broker: Broker) -> None:
    """Its last answer of Kafka is too old. Over HTTP it goes on, and over Kafka too once it is answered again."""
    seconds, answers = 0.0, 1
    consumer = Consumer("lease-broker", LEASE_REQUEST, LeaseCommandHandler(broker.admissions).handle)
    client = SimpleNamespace(assignment=lambda: (3,), last_poll_timestamp=lambda _: answers, highwater=lambda _: 4)
    subscription: Any = SimpleNamespace(
        consumer=consumer, owned={3: Owned(1, 4)}, client=client, at=lambda number: number
    )
    runtime = Runtime()
    runtime.subscriptions = [subscription]
    progress = RequestProgress(runtime, 4, clock=lambda: seconds)

    async def receives(at: float, answer: int) -> tuple[bool, bool]:
        nonlocal seconds, answers
        seconds, answers = at, answer
        await progress.record(broker.pool)
        receiving = progress.receiving("sim-a")
        return receiving.kafka is not None, receiving.http is not None

    assert await receives(1, 1) == (False, True)
    assert await receives(2, 2) == (True, True)
    assert await receives(8, 2) == (False, True)
    assert await receives(9, 3) == (True, True)


async def test_a_process_that_is_cut_off_before_it_has_recorded_anything(broker: Broker) -> None:
    """Its time without Kafka is downtime from the beginning, so that leases that it has granted get it."""
    handler = LeaseCommandHandler(broker.admissions)
    consumer = Consumer("lease-broker", LEASE_REQUEST, handler.handle)
    cut_off = SimpleNamespace(assignment=lambda: ())
    subscription: Any = SimpleNamespace(
        consumer=consumer, owned={3: Owned(1, 4)}, client=cut_off, at=lambda number: number
    )
    runtime = Runtime()
    runtime.subscriptions = [subscription]
    await RequestProgress(runtime, 4).record(broker.pool)
    await broker.set_clock(20)
    async with broker.pool.acquire() as db, db.transaction():
        recorded = await reception.record(db, {"3": 0.0})
    assert recorded["3"].downtimes == (Downtime(after(0), after(20)),)


async def test_a_clock_that_is_set_back_hides_no_downtime(broker: Broker) -> None:
    """A jump ahead is downtime; once the clock is set back only what is behind it is, and the next one is noticed."""
    async with broker.pool.acquire() as db:
        for seconds, downtimes in ((0, []), (3600, [(0, 3600)]), (3, [(0, 3)]), (63, [(0, 3), (3, 63)])):
            await broker.set_clock(seconds)
            async with db.transaction():
                recorded = await reception.record(db, {"3": 0.0})
            assert recorded["3"].downtimes == tuple(Downtime(after(began), after(ended)) for began, ended in downtimes)
