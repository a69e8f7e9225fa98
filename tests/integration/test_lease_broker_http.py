"""Declarations and lists of lease pools over HTTP, on PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from fastapi import FastAPI

from slipway_api.events.lease import LeaseLimitChanged, LeaseReleaseRequested, LeaseUnleasedReported
from slipway_common.base.ids import hash_secret
from slipway_common.web import problem
from slipway_common.web.limits import CallerLimits
from slipway_common.web.runtime import Runtime
from slipway_common.web.tokens import Tokens
from slipway_lease_broker.http import lease_pools, leases
from tests.support.lease_broker import Broker, acquire_request, after, release


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
    app.state.tokens, app.state.limits = Tokens(path), CallerLimits(100.0)
    app.state.runtime = runtime = Runtime()
    runtime.database = broker.pool
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
