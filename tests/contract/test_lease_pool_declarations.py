"""Declarations of lease pools over HTTP: owners, guard and audit, and ids with slashes at every route."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest
import yaml

from slipway_api.events.alert import AlertRaised
from slipway_api.events.lease import LeaseGranted, LeaseLimitChanged
from slipway_api.events.topics import ALERT, LEASE_LIFECYCLE
from slipway_common.base.ids import hash_secret
from slipway_common.declaration.fields import ID_PATTERN
from slipway_common.declaration.models import LeasePool
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.contract.boskos.slot_broker import SlotBroker, slot_broker_on
from tests.support.lease_broker import acquire_request, after
from tests.support.lease_broker_http import World, world_on

TIMES: Final = {"hold_seconds": 1200, "ttl_seconds": 300, "reserve_seconds": 180}
LARGE: Final = "gecko-t/t-linux-large"
UNKNOWN_OF_OPERATION: Final = "unknown field; known: weight, reserved_units, max_wait_seconds, pacing"


@pytest.fixture
async def world(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[World]:
    """Its pool "sim-a" has no owner yet."""
    async with world_on(postgres, tmp_path) as world:
        yield world


@pytest.fixture
async def slot_broker(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[SlotBroker]:
    async with slot_broker_on(postgres, tmp_path) as slot_broker:
        yield slot_broker


def pool(name: str, limit: int = 2, **changes: Any) -> dict[str, Any]:
    return {"id": name, "limit": limit, "pacing": "off"} | TIMES | changes


async def put(world: World, documents: dict[str, list[Any]], *, by: str = "operator", **query: str) -> Any:
    """The answer to a declaration of lease pools by owner."""
    body = {"documents": [{"owner": owner, "lease_pools": pools} for owner, pools in documents.items()]}
    return await world.replica.call("PUT", f"/lease-pools?{urlencode(query)}", body, by=by)


async def declared(world: World, documents: dict[str, list[Any]], **query: str) -> dict[str, str]:
    """Results of a declaration that is applied; its dangers are confirmed."""
    preview = (await put(world, documents, dry_run="true", **query)).json()
    answer = await put(world, documents, confirm=preview["digest"], **query)
    assert answer.status_code == 200, answer.text
    return {item["id"]: item["result"] for item in answer.json()["items"]}


async def owners(world: World) -> dict[str, str]:
    items = (await world.replica.call("GET", "/lease-pools", by="reader")).json()["items"]
    return {item["id"]: item["owner"] for item in items}


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json().get("type", "").removeprefix("urn:slipway:problem:")


async def test_an_owner_removes_only_its_own_pools(world: World) -> None:
    """Two files leave each other's pools alone, and the imported one, until one prunes."""
    assert await declared(world, {"a.yaml": [pool("x"), pool("y")]}) == {"x": "created", "y": "created"}
    assert await declared(world, {"b.yaml": [pool("z")]}) == {"z": "created"}
    assert await owners(world) == {"sim-a": "", "x": "a.yaml", "y": "a.yaml", "z": "b.yaml"}
    assert await declared(world, {"a.yaml": [pool("x")]}) == {"y": "archived"}
    assert await owners(world) == {"sim-a": "", "x": "a.yaml", "z": "b.yaml"}
    assert await declared(world, {"a.yaml": [pool("x")]}, prune="true") == {"sim-a": "archived", "z": "archived"}
    assert await declared(world, {"b.yaml": [pool("z")]}) == {"z": "reactivated"}
    assert await declared(world, {}, prune="true") == {}
    await put(world, {"a.yaml": []}, prune="true")
    assert await owners(world) == {"x": "a.yaml", "z": "b.yaml"}
    assert await declared(world, {"a.yaml": []}, prune="true") == {"x": "archived", "z": "archived"}


async def test_a_pool_of_another_owner_is_refused(world: World) -> None:
    """With both owners, also by a dry run, and nothing changes; it is adopted on demand."""
    await put(world, {"a.yaml": [pool("x")]})
    before = await world.rows()
    for query in ({}, {"dry_run": "true"}):
        refused = await put(world, {"b.yaml": [pool("x"), pool("new")]}, **query)
        assert refusal(refused) == (409, "owned-by-another")
        assert (refused.json()["owner"], refused.json()["declared_by"]) == ("a.yaml", "b.yaml")
        assert "lease pool x belongs to a.yaml and is also declared by b.yaml" in refused.json()["detail"]
    twice = await put(world, {"a.yaml": [pool("x")], "b.yaml": [pool("x")]})
    assert refusal(twice) == (422, "invalid-declaration")
    assert twice.json()["detail"] == "b.yaml: lease_pools[0].id: 'x' is already used by lease_pools[0] of a.yaml"
    assert await world.rows() == before
    adopted = (await put(world, {"b.yaml": [pool("x")]}, adopt="true")).json()["items"]
    assert [(item["result"], item["detail"]) for item in adopted] == [("updated", "owner: a.yaml → b.yaml")]


async def test_problems_are_shown_like_those_of_a_file(world: World) -> None:
    """Each with its document, its path and its value, and with what to do; nothing of the tools that found it."""
    before = await world.rows()
    limited = pool("x", operations={"build": {"weigth": 2}}, pacing={"interval_seconds": "soon"})
    refused = await put(world, {"a.yaml": [pool("X Y"), pool("fine")], "b.yaml": [limited, pool("y", -1), 7]})
    assert refusal(refused) == (422, "invalid-declaration")
    assert [(error["document"], error["path"], error["reason"]) for error in refused.json()["errors"]] == [
        ("a.yaml", "lease_pools[0].id", f'"X Y" {ID_PATTERN.mismatch}'),
        ("b.yaml", "lease_pools[0].pacing.interval_seconds", '"soon" must be a number of seconds'),
        ("b.yaml", "lease_pools[0].operations.build.weigth", UNKNOWN_OF_OPERATION),
        ("b.yaml", "lease_pools[1].limit", "-1: must be greater than or equal to 0"),
        ("b.yaml", "lease_pools[2]", "must be a mapping with fields, not 7"),
    ]
    assert refused.json()["detail"].startswith('a.yaml: lease_pools[0].id: "X Y" is not a valid id')
    assert refused.json()["detail"].endswith("; and 4 more")
    misnamed = await put(world, {"a b": []})
    assert misnamed.json()["detail"].startswith('documents[0].owner: "a b" is not a valid name: use')
    change = {"limit": 1, "hold_seconds": 1, "reason": "why"}
    terms = await world.replica.call("PATCH", "/lease-pools/sim-a", change, by="operator")
    assert (*refusal(terms), terms.json()["detail"]) == (
        422,
        "invalid-terms",
        "ttl_seconds 300 is above hold_seconds 1",
    )
    deep = b'{"documents": [{"owner": "a", "lease_pools": [%s]}]}' % (b"[" * 100_000 + b"]" * 100_000)
    for body in (b"{", deep, b'{"\xff": 1}', b'{"documents": [{"owner": "\xed\xa0\x80"}]}'):
        async with world.replica.client("operator") as client:
            assert refusal(await client.put("/lease-pools", content=body)) == (400, "not-json")
    assert await world.rows() == before


async def test_dangerous_changes_need_their_digest(world: World) -> None:
    """A dry run shows dangers and digest; without the digest, or with that of other changes, nothing changes."""
    await put(world, {"a.yaml": [pool("x", 10), pool("y")]})
    await world.broker.events()
    wanted = {"a.yaml": [pool("x", 21), pool("new")]}
    preview = await put(world, wanted, dry_run="true")
    assert (preview.status_code, preview.json()["applied"]) == (200, False)
    expected = ["lease pool x: the maximum grows from 10 to 21", "lease pool y is removed"]
    assert preview.json()["dangers"] == expected
    digest, before = preview.json()["digest"], await world.rows()
    other = (await put(world, {"a.yaml": [pool("x", 22), pool("new")]}, dry_run="true")).json()["digest"]
    assert other != digest
    for confirm in ("", other):
        refused = await put(world, wanted, confirm=confirm)
        assert refusal(refused) == (409, "confirmation-required")
        assert (refused.json()["digest"], refused.json()["dangers"]) == (digest, expected)
    assert await world.rows() == before
    assert (await put(world, wanted, confirm=digest)).json()["applied"] is True
    assert [(event.lease_pool_id, event.limit) for event in await world.broker.events()] == [
        ("new", 2),
        ("x", 21),
        ("y", 0),
    ]


async def test_a_limit_that_is_set_may_only_be_doubled(world: World) -> None:
    """More than that needs the digest of the refusal, in the query or in the body."""
    path, change = "/lease-pools/sim-a", {"limit": 5, "reason": "more quota"}
    before = await world.rows()
    refused = await world.replica.call("PATCH", path, change, by="operator")
    assert refusal(refused) == (409, "confirmation-required")
    assert refused.json()["dangers"] == ["lease pool sim-a: the maximum grows from 2 to 5"]
    assert await world.rows() == before
    raised = await world.replica.call("PATCH", f"{path}?confirm={refused.json()['digest']}", change, by="operator")
    assert (raised.status_code, raised.json()["limit"], raised.json()["result"]) == (200, 5, "updated")
    change |= {"limit": 11}
    digest = (await world.replica.call("PATCH", path, change, by="operator")).json()["digest"]
    raised = await world.replica.call("PATCH", path, change | {"confirm": digest}, by="operator")
    assert (raised.status_code, raised.json()["limit"]) == (200, 11)


async def test_every_change_is_audited(world: World) -> None:
    """Newest first: by whom, by which action, the changed fields before and after; not what changes nothing."""
    path = "/lease-pools/x"
    await put(world, {"a.yaml": [pool("x")]})
    await put(world, {"a.yaml": [pool("x")]})
    await put(world, {"a.yaml": [pool("x", 3)]}, by="root")
    for method, route, body in (
        ("PATCH", "", {"ttl_seconds": 60.0, "pinned": True}),
        ("PATCH", "", {"pinned": True}),
        ("PATCH", "", {"pinned": False}),
        ("POST", "/drain", {}),
        ("POST", "/undrain", {}),
    ):
        assert (await world.replica.call(method, path + route, body | {"reason": "why"}, by="operator")).is_success
    await declared(world, {"a.yaml": []})
    shown = (await world.replica.call("GET", "/audit?subject=x", by="reader")).json()["items"]
    assert [(row["action"], row["by"], row["result"], row["before"], row["after"]) for row in shown[:-1]] == [
        (
            "apply",
            "operator",
            "archived",
            {"limit": 3, "owner": "a.yaml", "revision": 3, "archived": False},
            {"limit": 0, "owner": "", "revision": 4, "archived": True},
        ),
        ("undrain", "operator", "updated", {"drained_reason": "why"}, {"drained_reason": None}),
        ("drain", "operator", "updated", {"drained_reason": None}, {"drained_reason": "why"}),
        ("unpin", "operator", "updated", {"pinned_reason": "why"}, {"pinned_reason": None}),
        ("pin", "operator", "updated", {"pinned_reason": None}, {"pinned_reason": "why"}),
        (
            "set",
            "operator",
            "updated",
            {"ttl_seconds": 300, "revision": 2},
            {"ttl_seconds": 60, "revision": 3},
        ),
        ("apply", "root", "updated", {"limit": 2, "revision": 1}, {"limit": 3, "revision": 2}),
    ]
    created = shown[-1]
    assert (created["action"], created["result"], created["before"]) == ("apply", "created", None)
    assert {name: created["after"][name] for name in ("limit", "owner", "mode")} == {
        "limit": 2,
        "owner": "a.yaml",
        "mode": "enforce",
    }
    assert {row["kind"] for row in shown} == {"lease-pool"}
    for query, found in (("limit=2", shown[:2]), ("by=root", [shown[-2]]), ("since=2100-01-01T00:00:00Z", [])):
        assert (await world.replica.call("GET", f"/audit?{query}", by="reader")).json()["items"] == found


async def test_an_imported_pool_is_owned_by_its_first_declaration(slot_broker: SlotBroker) -> None:
    """Importing again keeps the owner, and is audited."""
    world = slot_broker.world
    await slot_broker.put({"lease_pool": "car", "names": ["car-1"]})
    assert (await owners(world))["car"] == ""
    assert await declared(world, {"a.yaml": [pool("car", 1)]}) == {"car": "updated"}
    (item,) = (await slot_broker.put({"lease_pool": "car", "names": ["car-1", "car-2"]})).json()["items"]
    assert (item["result"], item["limit"]) == ("updated", 2)
    assert (await owners(world))["car"] == "a.yaml"
    shown = (await world.replica.call("GET", "/audit?subject=car", by="reader")).json()["items"]
    assert [(row["action"], row["result"], row["by"], (row["after"] or {}).get("slots")) for row in shown] == [
        ("import", "updated", "operator", {"added": ["car-2"], "removed": []}),
        ("import", "updated", "operator", None),
        ("apply", "updated", "operator", None),
        ("import", "updated", "operator", {"added": ["car-1"], "removed": []}),
        ("import", "created", "operator", None),
    ]


async def test_declared_terms_are_listed_as_they_were_declared(world: World) -> None:
    """So that they can be exported: under the names of slipway.yaml, with their owner."""
    wanted = pool(
        "x",
        pacing={"interval_seconds": 2.5, "burst": 3},
        operations={"install": {"weight": 2, "reserved_units": 1, "max_wait_seconds": 60.0}},
        tenants={"linux": 2.0},
        adaptive={"floor": 1, "ceiling": 4},
        mode="advisory",
    )
    await put(world, {"a.yaml": [wanted]})
    items = (await world.replica.call("GET", "/lease-pools", by="reader")).json()["items"]
    (shown,) = (item for item in items if item["id"] == "x")
    exported = LeasePool.model_validate({name: shown[name] for name in LeasePool.model_fields})
    assert exported == LeasePool.model_validate(wanted)
    assert (await put(world, {"a.yaml": [exported.model_dump(mode="json")]})).json()["items"] == []


async def test_a_large_declaration_is_accepted(world: World) -> None:
    """Of several MB; each invalid entry is named by its place, and nothing changes then."""
    pools = [pool(f"p{number}", tenants={f"tenant-{n}": 1.5 for n in range(100)}) for number in range(1_000)]
    before = await world.rows()
    refused = await put(world, {"a.yaml": [*pools, pool("bad", -1), pool("worse", hold_seconds=0)]})
    assert refusal(refused) == (422, "invalid-declaration")
    assert [error["path"] for error in refused.json()["errors"]] == [
        "lease_pools[1000].limit",
        "lease_pools[1001].hold_seconds",
    ]
    assert await world.rows() == before
    assert len(await declared(world, {"a.yaml": pools})) == 1_000


async def test_an_id_with_slashes_at_every_route(world: World) -> None:
    """A lease pool has the same id in its path, its events, its topic keys, its metrics and its alerts; the pool whose
    id is the head of it has a life of its own."""
    here, path = world.replica, f"/lease-pools/{quote(LARGE, safe='')}"
    both = {"a.yaml": [pool(LARGE, 3, derived={"per_unit": 1.0}), pool("gecko-t")]}
    assert await declared(world, both) == {"gecko-t": "created", LARGE: "created"}
    assert (await here.call("PUT", f"{path}/units", {"units": 3, "ttl_seconds": 60.0}, by="operator")).is_success
    acquired = await here.call("POST", f"{path}/leases", {"request_id": "of/1", "units": 2})
    assert (acquired.status_code, acquired.json()["lease_pool_id"]) == (200, LARGE)
    assert (await here.call("GET", f"{path}/requests/of%2F1", by="reader")).json()["request_id"] == "of/1"
    waits = await here.call("POST", f"{path}/leases", {"request_id": "of/2", "units": 2})
    assert waits.status_code == 202
    listed = (await here.call("GET", f"{path}/requests", by="reader")).json()["items"]
    assert [item["request_id"] for item in listed] == ["of/2"]
    assert (await here.call("DELETE", f"{path}/requests/of%2F2")).json()["cancelled_units"] == 2
    start = {"request_id": "u", "operation": "install", "units": 1, "started_at": after(0).isoformat()}
    assert (await here.call("POST", f"{path}/unleased", {"starts": [start]})).json()["charged"] == 1
    renewed = await here.call("POST", f"/leases/{acquired.json()['lease_id']}/renew", {"fencing_token": 1})
    assert renewed.is_success
    leases = (await here.call("GET", f"/leases?pool={quote(LARGE)}", by="reader")).json()["items"]
    assert {item["lease_pool_id"] for item in leases} == {LARGE}
    assert (await here.call("PATCH", path, {"limit": 4, "reason": "why"}, by="operator")).json()["id"] == LARGE
    for route in ("/drain", "/undrain"):
        drained = await here.call("POST", path + route, {"reason": "why"}, by="operator")
        assert drained.json()["id"] == LARGE
    for route in ("/history", "/report"):
        assert (await here.call("GET", path + route, by="reader")).is_success, route
    gang = {"request_id": "g", "members": [{"pool": "gecko-t"}, {"pool": LARGE}]}
    assert (await here.call("POST", "/lease-gangs", gang)).status_code == 202
    await world.broker.send(acquire_request("over-kafka", 1, LARGE))
    await world.broker.set_clock(60)  # the report of its units becomes stale
    await world.broker.decide()
    rows = await world.broker.pool.fetch("SELECT type, key, subject FROM outbox")
    assert {row["key"] for row in rows if row["type"] == LeaseGranted.type} <= {"gecko-t%2Ft-linux-large", "gecko-t"}
    assert ("gecko-t%2Ft-linux-large", "lease-pool/gecko-t%2Ft-linux-large") in {
        (row["key"], row["subject"]) for row in rows if row["type"] == LeaseLimitChanged.type
    }
    (alert,) = (event for event in await world.broker.events() if isinstance(event, AlertRaised))
    assert (alert.subject_kind, alert.subject_id) == ("lease-pool", LARGE)
    assert alert.dedup_key.endswith("/gecko-t%2Ft-linux-large")
    assert ALERT.key(alert) == alert.dedup_key
    metrics = (await here.call("GET", "/metrics", by="reader")).text
    assert f'slipway_lease_granted_units_total{{lease_pool="{LARGE}"}}' in metrics
    assert LARGE in await owners(world)


async def test_scopes_cover_ids_with_slashes(world: World) -> None:
    """A scope of one pool, or of all whose ids begin alike, holds for no other."""
    tokens = {"one": [f"leases:write:{LARGE}"], "all": ["leases:write:gecko-t/*"]}
    world.replica.app.state.tokens.path.write_text(
        yaml.safe_dump(
            [
                {"name": name, "sha256": hash_secret(f"secret of {name}"), "scopes": scopes}
                for name, scopes in (tokens | {"operator": ["lease-pools:write"]}).items()
            ]
        )
    )
    await put(world, {"a.yaml": [pool(name, 9) for name in (LARGE, "gecko-t/other", "gecko-t", "gecko-tx")]})
    allowed = {}
    for by in tokens:
        for name in (LARGE, "gecko-t/other", "gecko-t", "gecko-tx"):
            answer = await world.replica.call(
                "POST", f"/lease-pools/{quote(name, safe='')}/leases", {"request_id": by}, by=by
            )
            allowed[by, name] = answer.status_code
    assert allowed == {
        ("one", LARGE): 200,
        ("one", "gecko-t/other"): 403,
        ("one", "gecko-t"): 403,
        ("one", "gecko-tx"): 403,
        ("all", LARGE): 200,
        ("all", "gecko-t/other"): 200,
        ("all", "gecko-t"): 403,
        ("all", "gecko-tx"): 403,
    }


async def test_slots_of_a_type_with_slashes(slot_broker: SlotBroker) -> None:
    """A type of Boskos is the id of its lease pool."""
    answer = await slot_broker.put({"lease_pool": LARGE, "names": ["large-1"]})
    assert (answer.status_code, answer.json()["items"][0]["result"]) == (200, "created")
    taken = await slot_broker.done(f"POST /acquire?type={quote(LARGE)}&state=free&dest=leased&owner=ann")
    assert (taken.json()["name"], taken.json()["type"]) == ("large-1", LARGE)
    shown = (await slot_broker.replica.call("GET", f"/slots?pool={quote(LARGE)}", by="reader")).json()["items"]
    assert [(slot["name"], slot["owner"]) for slot in shown] == [("large-1", "ann")]
    assert LEASE_LIFECYCLE.key(LeaseLimitChanged(lease_pool_id=LARGE, limit=1, previous_limit=None, reason="")) in {
        row["key"] for row in await slot_broker.broker.pool.fetch("SELECT key FROM outbox")
    }
