"""Lease pools on PostgreSQL, by the handlers and loops of the lease-broker: requests, grants, ends."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.lease import (
    LeaseConfirmed,
    LeaseExpired,
    LeaseGranted,
    LeaseGroup,
    LeaseLost,
    LeaseQueued,
    LeaseReleased,
    LeaseUnleasedReported,
)
from slipway_api.events.topics import LEASE_REQUEST
from slipway_common.base.errors import BadEvent
from slipway_common.base.ids import new_id
from slipway_common.database.sql import COPIED_MIN
from slipway_common.messaging.consume import Consumer, Owned, apply
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.records import Record
from slipway_lease_broker import admission
from slipway_lease_broker.admission import AdmissionTx
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.exchange import Exchange
from slipway_lease_broker.domain.terms import Policy
from slipway_lease_broker.grant_waiters import GrantWaiters
from slipway_lease_broker.handlers.requests import LeaseCommandHandler
from slipway_lease_broker.loops.gangs import GangLoop
from slipway_lease_broker.loops.sweep import sweep
from slipway_lease_broker.metrics import UNDECIDED
from slipway_lease_broker.store import answers, requests
from slipway_lease_broker.store import leases as store_leases
from tests.support.lease_broker import (
    SERVICE,
    START,
    UNDECIDABLE,
    Broker,
    acquire_request,
    admissions,
    after,
    cancel,
    confirm,
    kinds,
    names,
    received,
    release,
    renew,
    terms,
)

LEASES_READ: Final = """
SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::int FROM pg_stat_xact_user_tables
WHERE schemaname = current_schema() AND relname = 'leases'"""
ROWS_READ: Final = LEASES_READ.replace("= 'leases'", "IN ('leases', 'requests')")


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


async def test_many_pools_are_not_verified_at_once(broker: Broker) -> None:
    """Those that are declared together are verified within a round, each once, and not all by the next sweep."""
    await broker.declare(terms("sim-a"), *(terms(f"p{number}") for number in range(149)))
    for verified in (2, 4):
        await sweep(broker.pool)
        assert await broker.pool.fetchval("SELECT count(verified_at) FROM lease_pools") == verified
    for _ in range(73):
        await sweep(broker.pool)
    await broker.set_clock(1)
    await sweep(broker.pool)
    assert await broker.pool.fetchval("SELECT count(*) FROM lease_pools WHERE verified_at = $1", START) == 150


@pytest.mark.parametrize("number", [COPIED_MIN - 1, COPIED_MIN])
async def test_requests_of_a_batch_wait_in_its_order(broker: Broker, number: int) -> None:
    """Few rows are appended by INSERT and more by COPY; the queue has both in the order of their arrival."""
    asked = [f"r{n}" for n in reversed(range(number))]
    await broker.send(*(acquire_request(name) for name in asked))
    waiting = await broker.pool.fetch("SELECT id FROM requests ORDER BY place")
    assert [row["id"] for row in waiting] == asked


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


async def test_a_confirmation_reads_no_other_leases(broker: Broker) -> None:
    """By plans that were kept since there were few."""
    await broker.declare(terms("sim-a", 10_000))
    await broker.send(acquire_request("first"), acquire_request("second"))
    first, second = await broker.grants()
    await broker.pool.execute("ANALYZE")
    async with broker.pool.acquire() as db:
        async with db.transaction():
            await broker.send_in(db, confirm(first))
        await broker.send(*(acquire_request(f"r{number}") for number in range(500)))
        assert len(await broker.grants()) == 500
        async with db.transaction():
            before = await db.fetchval(LEASES_READ)
            await broker.send_in(db, confirm(second))
            assert await db.fetchval(LEASES_READ) - before == 2, "to apply the command, and to write what it changed"


async def test_repeated_requests_read_no_others(broker: Broker) -> None:
    """By plans that were kept since there were few."""
    await broker.declare(terms("sim-a", 10_000))
    repeated = [acquire_request("first"), acquire_request("second")]
    await broker.send(*repeated)
    await broker.grants()
    await broker.pool.execute("ANALYZE")
    async with broker.pool.acquire() as db:
        for others in (0, 500):
            await broker.send(*(acquire_request(f"r{number}") for number in range(others)))
            await broker.grants()
            async with db.transaction():
                before = await db.fetchval(ROWS_READ)
                await broker.send_in(db, *repeated)
                assert await db.fetchval(ROWS_READ) - before < 50


async def test_a_batch_takes_as_many_statements_as_one_command(broker: Broker) -> None:
    """Of several lease pools, which are read and written together."""
    pools = [f"p{number}" for number in range(4)]
    await broker.declare(*map(terms, pools))
    broker.handler = LeaseCommandHandler(broker.admissions)
    await broker.send(acquire_request("first", pool="p0"))  # until then the driver has looked up types
    async with broker.pool.acquire() as db:

        async def statements(*commands: Any) -> int:
            executed: list[Any] = []
            with db.query_logger(executed.append):
                async with db.transaction():
                    await broker.send_in(db, *commands)
                await asyncio.sleep(0)  # until the driver has logged all
            return len(executed)

        assert await statements(acquire_request("one", pool="p0")) == 8, "with BEGIN and COMMIT"
        assert await statements(*(acquire_request("all", pool=pool) for pool in pools)) == 8
        granted = [event for event in await broker.events() if isinstance(event, LeaseGranted)]
        assert len(granted) == 6
        assert await statements(confirm(granted[0])) == 6
        assert await statements(*map(confirm, granted[1:])) == 6


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
