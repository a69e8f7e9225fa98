"""The lease-broker on a real database: what is said to it, what it decides and what it tells."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import msgspec
import pytest
import yaml
from fastapi import FastAPI

from slipway_common import problem
from slipway_common.access import Tokens
from slipway_common.consume import Consumer, Owned, Record, apply
from slipway_common.envelope import Envelope, encode
from slipway_common.errors import BadEvent
from slipway_common.events.lease import (
    LeaseConfirmed,
    LeaseExpired,
    LeaseGranted,
    LeaseLimitChanged,
    LeaseLost,
    LeaseQueued,
    LeaseReleased,
)
from slipway_common.ids import hash_secret, new_id
from slipway_common.topics import LEASE_REQUEST
from slipway_lease_broker.handlers.requests import record_requests
from slipway_lease_broker.http import leases as http
from slipway_local.postgres import EmbeddedPostgres
from tests.lease_broker import (
    SERVICE,
    START,
    Broker,
    after,
    ask,
    broker_on,
    cancel,
    confirm,
    release,
    renew,
    terms,
)


@pytest.fixture
async def broker(postgres: EmbeddedPostgres) -> AsyncIterator[Broker]:
    async with broker_on(postgres) as broker:
        await broker.declare(terms())
        await broker.told()
        yield broker


def kinds(events: Sequence[Any]) -> list[str]:
    return [type(event).__name__ for event in events]


async def test_from_request_to_release(broker: Broker) -> None:
    """Granted, confirmed, renewed, released in two parts: each step is told, and the units come back."""
    await broker.tell(ask("r", 3))
    (lease,) = await broker.grants()
    assert (lease.units, lease.fencing_token, lease.expires_at, lease.hold_until) == (3, 1, after(180), after(1200))
    await broker.set_clock(100)
    await broker.tell(confirm(lease))
    await broker.set_clock(350)
    await broker.tell(renew(lease))
    await broker.tell(release(lease, 2))
    assert await broker.held() == 1
    await broker.tell(release(lease, 1))
    assert await broker.held() == 0
    common = {"lease_pool_id": "sim-a", "lease_id": lease.lease_id}
    assert await broker.told() == [
        LeaseConfirmed(**common, fencing_token=1, expires_at=after(400)),
        LeaseConfirmed(**common, fencing_token=1, expires_at=after(650)),
        LeaseReleased(**common, request_id="r", units=2, remaining=1, reason="registered"),
        LeaseReleased(**common, request_id="r", units=1, remaining=0, reason="registered"),
    ]
    await broker.set_clock(10_000)
    await broker.decide()
    assert await broker.told() == []


async def test_partial_grants_in_order_of_arrival(broker: Broker) -> None:
    """The head gets what is there, waits for the rest, and nobody passes it; each part is a lease with its token."""
    await broker.tell(ask("r1", 7), ask("r2", 1))
    await broker.decide()
    first, queued1, queued2 = await broker.told()
    assert (first.request_id, first.units) == ("r1", 5)
    assert queued1 == LeaseQueued(lease_pool_id="sim-a", request_id="r1", units=2, position=1)
    assert queued2 == LeaseQueued(lease_pool_id="sim-a", request_id="r2", units=1, position=2)
    await broker.set_clock(30)
    await broker.tell(release(first, 1))
    (second,) = await broker.grants()
    assert (second.request_id, second.units, second.fencing_token, second.waited_seconds) == ("r1", 1, 2, 30)
    await broker.tell(release(first, 4))
    assert [(g.request_id, g.units, g.fencing_token) for g in await broker.grants()] == [("r1", 1, 3), ("r2", 1, 4)]


async def test_a_repeated_request_grants_nothing_more(broker: Broker) -> None:
    """Whether it waits, was granted or is over; only the time it was asked last moves."""
    await broker.tell(ask("r", 2))
    (lease,) = await broker.grants()
    await broker.set_clock(30)
    await broker.tell(ask("r", 2), ask("r", 9))
    await broker.tell(release(lease))
    await broker.tell(ask("r", 2))
    assert await broker.grants() == []
    row = await broker.pool.fetchrow("SELECT * FROM requests")
    assert (row["asked_units"], row["waiting_units"], row["asked_at"], row["last_asked_at"]) == (2, 0, START, after(30))


async def test_unconfirmed_leases_expire(broker: Broker) -> None:
    """At the reserve deadline the full capacity is back; confirming later revives nothing and is told as lost."""
    await broker.tell(ask("r1", 5), ask("r2", 1))
    (lease,) = await broker.grants()
    await broker.set_clock(179.9)
    assert await broker.decide() == 0
    await broker.set_clock(180)
    await broker.decide()
    expired, granted = await broker.told()
    assert expired == LeaseExpired(lease_pool_id="sim-a", lease_id=lease.lease_id, request_id="r1", units=5)
    assert (granted.request_id, granted.fencing_token) == ("r2", 2)
    await broker.tell(confirm(lease))
    assert kinds(await broker.told()) == ["LeaseLost"]
    assert await broker.held() == 1


async def test_lost_leases_stay_counted(broker: Broker) -> None:
    """A holder that fell silent may have a call under way: its units are free only after the linger."""
    await broker.tell(ask("r1", 5), ask("r2", 1))
    (lease,) = await broker.grants()
    await broker.tell(confirm(lease))
    await broker.told()
    await broker.set_clock(300)
    await broker.decide()
    (lost,) = await broker.told()
    assert lost == LeaseLost(
        lease_pool_id="sim-a", lease_id=lease.lease_id, request_id="r1", units=5, counted_until=after(370)
    )
    await broker.tell(renew(lease), release(lease))
    assert await broker.told() == [lost]
    await broker.set_clock(369)
    assert await broker.grants() == []
    assert await broker.held() == 5
    await broker.set_clock(370)
    assert [grant.request_id for grant in await broker.grants()] == ["r2"]
    assert await broker.held() == 1


async def test_a_late_renewal_before_the_expiry_committed(broker: Broker) -> None:
    """It counts: until its expiry has committed, a lease lives."""
    await broker.tell(ask("r"))
    (lease,) = await broker.grants()
    await broker.tell(confirm(lease))
    await broker.set_clock(301)
    await broker.tell(renew(lease))
    await broker.decide()
    assert kinds(await broker.told()) == ["LeaseConfirmed", "LeaseConfirmed"]


async def test_the_hold_ends_a_lease_whatever_its_renewals(broker: Broker) -> None:
    """The broker releases it itself."""
    await broker.tell(ask("r"))
    (lease,) = await broker.grants()
    await broker.tell(confirm(lease))
    for seconds in range(250, 1200, 250):
        await broker.set_clock(seconds)
        await broker.tell(renew(lease))
        await broker.decide()
    told = await broker.told()
    assert set(kinds(told)) == {"LeaseConfirmed"}
    assert told[-1].expires_at == after(1200)
    await broker.set_clock(1200)
    await broker.decide()
    assert await broker.told() == [
        LeaseReleased(
            lease_pool_id="sim-a", lease_id=lease.lease_id, request_id="r", units=1, remaining=0, reason="hold"
        )
    ]


async def test_no_deadline_passes_before_the_requests_are_read(broker: Broker) -> None:
    """After a start or take-over renewals may be waiting unread; units that are free are granted meanwhile."""
    await broker.tell(ask("r1", 4))
    (lease,) = await broker.grants()
    await broker.tell(confirm(lease))
    await broker.told()
    broker.caught_up = False
    await broker.set_clock(1000)
    assert await broker.decide() == 0
    await broker.tell(ask("r2", 2))
    assert [(grant.request_id, grant.units) for grant in await broker.grants()] == [("r2", 1)]
    await broker.tell(renew(lease))
    broker.caught_up = True
    await broker.decide()
    assert kinds(await broker.told()) == ["LeaseConfirmed"]
    await broker.set_clock(1180)
    await broker.decide()
    assert kinds(await broker.told()) == ["LeaseExpired", "LeaseGranted"]


async def test_cancel_gives_up_what_waits(broker: Broker) -> None:
    """Granted units are untouched; the rest of the queue moves up."""
    await broker.tell(ask("r1", 7), ask("r2", 2))
    (lease,) = await broker.grants()
    await broker.tell(cancel("r1", 9), release(lease, 1))
    assert [(grant.request_id, grant.units) for grant in await broker.grants()] == [("r2", 1)]


async def test_lowering_the_limit_drains(broker: Broker) -> None:
    """Nothing is revoked; grants begin again once enough has come back. Raising it grants at once."""
    await broker.tell(ask("r1", 5), ask("r2", 3))
    (lease,) = await broker.grants()
    await broker.declare(terms(limit=2))
    assert await broker.grants() == []
    assert await broker.held() == 5
    await broker.tell(release(lease, 3))
    assert await broker.grants() == []
    await broker.tell(release(lease, 1))
    assert [grant.units for grant in await broker.grants()] == [1]
    await broker.declare(terms(limit=9))
    assert [grant.units for grant in await broker.grants()] == [2]


async def test_pools_do_not_wait_for_each_other(broker: Broker) -> None:
    """Each has its limit, its queue and its tokens; one decision is about one pool."""
    await broker.declare(terms("a", 1), terms("b", 1))
    await broker.tell(ask("r1", 1, "a"), ask("r2", 1, "a"), ask("r1", 1, "b"))
    assert await broker.decide() == 3  # the retired first pool is due as well
    told = [event for event in await broker.told() if isinstance(event, LeaseGranted)]
    assert sorted((grant.lease_pool_id, grant.request_id, grant.fencing_token) for grant in told) == [
        ("a", "r1", 1), ("b", "r1", 1),
    ]  # fmt: skip


async def test_an_undeclared_pool_is_a_data_error(broker: Broker) -> None:
    """The record becomes a dead letter, the rest of its batch is applied, and the stream moves on."""
    with pytest.raises(BadEvent, match="nowhere"):
        await broker.tell(ask("r", 1, "nowhere"))
    bad = [ask("r2", 1, "nowhere"), ask("r\0"), ask("r3", 2**70), ask("r4", 0), ask("x" * 3000)]
    facts = [ask("r1"), *bad, ask("r5")]
    records = [
        Record(
            LEASE_REQUEST.name, 0, offset, fact.lease_pool_id.encode(), _json(fact), encode(_envelope(fact, offset)), 0
        )
        for offset, fact in enumerate(facts)
    ]
    async with broker.pool.acquire() as db:
        await db.execute("INSERT INTO consumed VALUES ($1, 0, 1, 0, 'c')", LEASE_REQUEST.name)
        await apply(db, Consumer(SERVICE, LEASE_REQUEST, record_requests), Owned(1, 0), records)
    assert [grant.request_id for grant in await broker.grants()] == ["r1", "r5"]
    dead = await broker.pool.fetch('SELECT "offset", state FROM dead_letter ORDER BY 1')
    assert [(row["offset"], row["state"]) for row in dead] == [(n, "dead") for n in range(1, 6)]


def _json(fact: Any) -> bytes:
    return msgspec.json.encode(fact)


def _envelope(fact: Any, number: int) -> Envelope:
    return Envelope(
        id=new_id(), type=fact.type, source="provisioner", subject=f"s{number}", time=START,
        number=number + 1, previous=number,
    )  # fmt: skip


async def test_a_burst_is_decided_in_few_transactions(broker: Broker) -> None:
    """200 requests and 200 grants cost one transaction each way, whatever their number."""
    await broker.declare(terms(limit=200))
    await broker.tell(*(ask(f"r{n}") for n in range(200)))
    assert await broker.decide() == 1
    grants = [event for event in await broker.told() if isinstance(event, LeaseGranted)]
    assert [grant.request_id for grant in grants] == [f"r{n}" for n in range(200)]
    await broker.tell(*(confirm(grant) for grant in grants))
    await broker.tell(*(release(grant) for grant in grants))
    assert await broker.held() == 0


# HTTP


@pytest.fixture
async def client(broker: Broker, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    tokens = [
        {"name": "ops", "sha256": hash_secret("secret"), "scopes": ["lease-pools:write"]},
        {"name": "monitor", "sha256": hash_secret("other"), "scopes": ["demand:write:*"]},
    ]
    path = tmp_path / "tokens.yaml"
    path.write_text(yaml.safe_dump(tokens))
    app = FastAPI()
    problem.install(app)
    app.state.tokens = Tokens(path)
    app.state.runtime = SimpleNamespace(pool=broker.pool, ring=lambda: None)
    app.include_router(http.router)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://broker", headers={"Authorization": "Bearer secret"}
    ) as client:
        yield client


BODY = {"id": "sim-a", "limit": 5, "hold_seconds": 1200, "ttl_seconds": 300, "reserve_seconds": 180, "pacing": "off"}


async def test_declaring_is_idempotent(broker: Broker, client: httpx2.AsyncClient) -> None:
    """The same list again changes nothing and tells nothing."""
    answer = await client.put("/lease-pools", json=[BODY])
    assert answer.json() == {"dry_run": False, "items": [{"id": "sim-a", "change": "unchanged", "fields": {}}]}
    assert await broker.told() == []
    assert await broker.pool.fetchval("SELECT revision FROM lease_pools") == 1


async def test_a_dry_run_changes_nothing(broker: Broker, client: httpx2.AsyncClient) -> None:
    """It answers what the real one would."""
    wanted = [BODY | {"limit": 9}, BODY | {"id": "new"}]
    dry = (await client.put("/lease-pools", json=wanted, params={"dry_run": "true"})).json()
    assert await broker.told() == []
    real = (await client.put("/lease-pools", json=wanted, params={"reason": "more quota"})).json()
    assert (dry.pop("dry_run"), real.pop("dry_run")) == (True, False)
    assert dry == real
    assert [item["change"] for item in real["items"]] == ["created", "updated"]
    assert real["items"][1]["fields"] == {"limit": [5, 9], "revision": [1, 2]}
    assert await broker.told() == [
        LeaseLimitChanged(lease_pool_id="new", limit=5, previous_limit=None, reason="more quota"),
        LeaseLimitChanged(lease_pool_id="sim-a", limit=9, previous_limit=5, reason="more quota"),
    ]


async def test_a_pool_left_out_is_retired(broker: Broker, client: httpx2.AsyncClient) -> None:
    """Its limit falls to 0 and it drains; declared again, it is back with its tokens."""
    await broker.tell(ask("r1", 2))
    (lease,) = await broker.grants()
    (item,) = (await client.put("/lease-pools", json=[])).json()["items"]
    assert (item["change"], item["fields"]["limit"]) == ("retired", [5, 0])
    await broker.tell(ask("r2", 1))
    assert await broker.grants() == []
    (shown,) = (await client.get("/lease-pools")).json()["items"]
    assert (shown["retired"], shown["held"], shown["waiting"]) == (True, 2, 1)
    await broker.tell(release(lease))
    (item,) = (await client.put("/lease-pools", json=[BODY])).json()["items"]
    assert item["change"] == "restored"
    assert [grant.fencing_token for grant in await broker.grants()] == [2]


async def test_pools_and_leases_are_shown(broker: Broker, client: httpx2.AsyncClient) -> None:
    """Limit, held, waiting and since when, granted per minute, what the next one would wait, and why."""
    await broker.tell(ask("r1", 4), ask("r2", 3))
    first, second = await broker.grants()
    (shown,) = (await client.get("/lease-pools")).json()["items"]
    assert {key: shown[key] for key in ("id", "limit", "held", "waiting", "requests", "granted_per_minute")} == {
        "id": "sim-a", "limit": 5, "held": 5, "waiting": 2, "requests": 1, "granted_per_minute": 5,
    }  # fmt: skip
    assert (shown["oldest_wait_seconds"], shown["eta_seconds"]) == (0, 36)
    assert shown["why"].splitlines()[-1] == "1 requests wait for 2 units: 5 of 5 held"
    await broker.set_clock(61)
    (shown,) = (await client.get("/lease-pools")).json()["items"]
    assert (shown["granted_per_minute"], shown["oldest_wait_seconds"], shown["eta_seconds"]) == (0, 61, 720)
    listed = (await client.get("/leases", params={"pool": "sim-a"})).json()["items"]
    assert [(lease["id"], lease["units"], lease["state"]) for lease in listed] == [
        (first.lease_id, 4, "reserved"), (second.lease_id, 1, "reserved"),
    ]  # fmt: skip
    assert listed == (await client.get("/leases")).json()["items"]


BAD_BODIES: list[Any] = [
    [BODY | {"limit": -1}],
    [BODY | {"limit": "5"}],
    [BODY | {"limit": 10**9}],
    [BODY | {"ttl_seconds": 0}],
    [BODY | {"id": "Upper Case"}],
    [BODY | {"surprise": 1}],
    [{"id": "sim-a"}],
    [BODY, BODY],
    {"not": "a list"},
]


async def test_bad_declarations_change_nothing(broker: Broker, client: httpx2.AsyncClient) -> None:
    """One bad pool refuses the whole list."""
    good = BODY | {"id": "good", "limit": 1}
    for body in BAD_BODIES:
        answer = await client.put("/lease-pools", json=[good, *body] if isinstance(body, list) else body)
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json"), body
        assert answer.json()["type"] in {"urn:slipway:problem:invalid-request", "urn:slipway:problem:duplicate-id"}
    assert await broker.pool.fetchval("SELECT count(*) FROM lease_pools") == 1
    assert await broker.told() == []


async def test_writing_needs_the_scope(broker: Broker, client: httpx2.AsyncClient) -> None:
    """Without it nothing changes."""
    for header, status, slug in [
        ("", 401, "no-token"), ("Bearer wrong", 401, "unknown-token"), ("Bearer other", 403, "scope-missing"),
    ]:  # fmt: skip
        answer = await client.put("/lease-pools", json=[], headers={"Authorization": header})
        assert (answer.status_code, answer.json()["type"]) == (status, f"urn:slipway:problem:{slug}")
    assert await broker.told() == []


async def test_leases_of_an_unknown_pool(client: httpx2.AsyncClient) -> None:
    """A typo is told from an empty pool."""
    answer = await client.get("/leases", params={"pool": "nowhere"})
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:slipway:problem:unknown-lease-pool")
