"""Refused calls to the lease-broker, and who may act for others."""

from datetime import timedelta
from email.utils import format_datetime
from typing import Any
from urllib.parse import quote

from slipway_common.base.clock import utc_now
from tests.support.lease_broker import terms
from tests.support.lease_broker_http import World, instant, slug

START_NOW = {"request_id": "bens", "operation": "install", "units": 1, "started_at": instant(0)}
FIRST_YEAR = "0001-01-01T00:00:00+14:00"  # in the previous year in UTC
START_LATER = START_NOW | {"request_id": "new", "started_at": instant(61)}
REFUSED: list[tuple[str, str, str, Any, str, int, str]] = [
    # method, path, by, body, header, status, slug
    ("POST", "/lease-pools/nowhere/leases", "ann", {"request_id": "x"}, "", 404, "unknown-lease-pool"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x", "units": -1}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x", "units": 0}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x", "units": True}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x", "units": 10**9}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x" * 501}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "a\0b"}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": ""}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x", "priority": 10}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x", "wait_seconds": 61}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x", "wait": 1}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "held", "units": 1}, "", 409, "request-conflict"),
    ("POST", "/lease-pools/sim-a/leases", "ben", {"request_id": "held", "units": 2}, "", 403, "wrong-owner"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x"}, "Slipway-Sent-At", 422, "clock-ahead"),
    ("POST", "/lease-pools/sim-a/leases", "ann", {"request_id": "x"}, "Date", 422, "clock-ahead"),
    ("POST", "/lease-pools/sim-a/leases", "", {"request_id": "x"}, "", 401, "no-token"),
    ("POST", "/lease-pools/sim-a/leases", "stranger", {"request_id": "x"}, "", 401, "unknown-token"),
    ("POST", "/lease-pools/sim-a/leases", "cid", {"request_id": "x"}, "", 403, "scope-missing"),
    ("POST", "/lease-pools/sim-a/leases", "operator", {"request_id": "x"}, "", 403, "scope-missing"),
    (
        "POST",
        "/lease-pools/sim-a/leases",
        "ben",
        {"request_id": "x", "replaces": {"lease_id": "HELD", "fencing_token": 1}},
        "",
        403,
        "wrong-owner",
    ),
    (
        "POST",
        "/lease-pools/sim-a/leases",
        "ann",
        {"request_id": "x", "replaces": {"lease_id": "HELD", "fencing_token": 7}},
        "",
        409,
        "stale-token",
    ),
    *(
        refused
        for what in ("renew", "heartbeat", "confirm", "release")
        for refused in (
            ("POST", f"/leases/HELD/{what}", "ben", {"fencing_token": 1}, "", 403, "wrong-owner"),
            ("POST", f"/leases/HELD/{what}", "cid", {"fencing_token": 1}, "", 403, "scope-missing"),
            ("POST", f"/leases/HELD/{what}", "nobody", {"fencing_token": 1}, "", 403, "scope-missing"),
            ("POST", f"/leases/HELD/{what}", "", {"fencing_token": 1}, "", 401, "no-token"),
            ("POST", f"/leases/HELD/{what}", "ann", {"fencing_token": 2}, "", 409, "stale-token"),
            ("POST", f"/leases/HELD/{what}", "ann", {"fencing_token": -1}, "", 422, "invalid-request"),
            ("POST", f"/leases/HELD/{what}", "ann", {"fencing_token": 1}, "Slipway-Sent-At", 422, "clock-ahead"),
            ("POST", f"/leases/gone/{what}", "ann", {"fencing_token": 1}, "", 404, "unknown-lease"),
            ("POST", f"/leases/gone/{what}", "nobody", {"fencing_token": 1}, "", 403, "scope-missing"),
            ("POST", f"/leases/{'x' * 501}/{what}", "ann", {"fencing_token": 1}, "", 422, "invalid-request"),
        )
    ),
    ("POST", "/leases/HELD/release", "ann", {"fencing_token": 1, "units": -1}, "", 422, "invalid-request"),
    ("GET", "/leases/gone", "reader", None, "", 404, "unknown-lease"),
    ("GET", "/leases/gone/history", "reader", None, "", 404, "unknown-lease"),
    ("GET", "/leases?pool=nowhere", "reader", None, "", 404, "unknown-lease-pool"),
    ("GET", "/leases?mine=true", "", None, "", 401, "no-token"),
    ("GET", "/lease-pools/nowhere/requests", "reader", None, "", 404, "unknown-lease-pool"),
    ("GET", "/lease-pools/nowhere/requests/x", "reader", None, "", 404, "unknown-lease-pool"),
    ("GET", "/lease-pools/sim-a/requests/x", "reader", None, "", 404, "unknown-request"),
    ("DELETE", "/lease-pools/sim-a/requests/x", "ann", None, "", 404, "unknown-request"),
    ("DELETE", "/lease-pools/nowhere/requests/x", "ann", None, "", 404, "unknown-lease-pool"),
    ("DELETE", "/lease-pools/sim-a/requests/held", "ben", None, "", 403, "wrong-owner"),
    ("DELETE", "/lease-pools/sim-a/requests/held", "cid", None, "", 403, "scope-missing"),
    *(
        refused
        for method, path, body in (
            ("PATCH", "", {"limit": 5, "reason": "x"}),
            ("POST", "/drain", {"reason": "x"}),
            ("POST", "/undrain", {"reason": "x"}),
            ("PUT", "/units", {"units": 1, "ttl_seconds": 5.0}),
        )
        for refused in (
            (method, f"/lease-pools/sim-a{path}", "ann", body, "", 403, "scope-missing"),
            (method, f"/lease-pools/sim-a{path}", "", body, "", 401, "no-token"),
            (method, f"/lease-pools/nowhere{path}", "operator", body, "", 404, "unknown-lease-pool"),
            (method, f"/lease-pools/sim-a{path}", "operator", body, "Slipway-Sent-At", 422, "clock-ahead"),
            (method, f"/lease-pools/sim-a{path}", "operator", body | {"more": 1}, "", 422, "invalid-request"),
        )
    ),
    ("PATCH", "/lease-pools/sim-a", "operator", {"limit": 5}, "", 422, "invalid-request"),
    ("PATCH", "/lease-pools/sim-a", "operator", {"limit": -1, "reason": "x"}, "", 422, "invalid-request"),
    ("PATCH", "/lease-pools/sim-a", "operator", {"hold_seconds": 10, "reason": "x"}, "", 422, "invalid-terms"),
    (
        "PATCH",
        "/lease-pools/sim-a",
        "operator",
        {"limit": 5, "reason": "x", "revision": 9},
        "",
        409,
        "revision-conflict",
    ),
    ("PUT", "/lease-pools/sim-a/units", "operator", {"units": 1, "ttl_seconds": 5.0}, "", 409, "not-derived"),
    ("PUT", "/lease-pools/sim-a/units", "operator", {"units": -1, "ttl_seconds": 5.0}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/unleased", "ann", {"starts": [START_NOW]}, "", 403, "wrong-owner"),
    (
        "POST",
        "/lease-pools/sim-a/unleased",
        "ann",
        {"starts": [START_NOW | {"started_at": FIRST_YEAR}]},
        "",
        422,
        "invalid-request",
    ),
    ("GET", f"/lease-pools/sim-a/history?since={quote(FIRST_YEAR)}", "ann", None, "", 422, "invalid-request"),
    (
        "POST",
        "/lease-pools/sim-a/leases",
        "ann",
        {"request_id": "x", "group": {"name": "g", "size": 3, "spread_seconds": 60, "member": 3}},
        "",
        422,
        "invalid-request",
    ),
    ("POST", "/lease-pools/sim-a/unleased", "ann", {"starts": []}, "", 422, "invalid-request"),
    ("POST", "/lease-pools/sim-a/unleased", "cid", {"starts": [START_LATER]}, "", 403, "scope-missing"),
    ("POST", "/lease-pools/nowhere/unleased", "ann", {"starts": [START_NOW]}, "", 404, "unknown-lease-pool"),
    ("GET", "/lease-pools/nowhere/history", "reader", None, "", 404, "unknown-lease-pool"),
    ("GET", "/lease-pools/sim-a/history?since=noon", "reader", None, "", 422, "invalid-request"),
    ("GET", "/lease-pools/nowhere/report", "reader", None, "", 404, "unknown-lease-pool"),
    ("GET", "/lease-pools/sim-a/report?limit=0", "reader", None, "", 422, "invalid-request"),
]


async def test_refused_calls_change_nothing(world: World) -> None:
    """Each is answered with its own problem, and every row stays as it was."""
    held = (await world.replica.acquire("held", units=2)).json()["lease_id"]
    await world.replica.acquire("waits")
    await world.replica.acquire("bens", by="ben")
    before = await world.rows()
    ahead = utc_now() + timedelta(days=1)
    published = {"Slipway-Sent-At": ahead.isoformat(), "Date": format_datetime(ahead, usegmt=True)}
    for method, path, by, body, header, status, expected in REFUSED:
        case = f"{method} {path[:50]} by {by!r} {body}"
        sent = {"replaces": body["replaces"] | {"lease_id": held}} if body and "replaces" in body else {}
        headers = {header: published[header]} if header else {}
        answer = await world.replica.call(method, path.replace("HELD", held), body and body | sent, by=by, **headers)
        assert (answer.status_code, slug(answer)) == (status, expected), f"{case}: {answer.text}"
        problem = answer.json()
        assert problem["status"] == status
        assert problem["title"], case
        assert problem["detail"], case
    assert await world.rows() == before


async def test_a_former_holder(world: World) -> None:
    """A token of another lease and an ended lease are distinct problems, and nothing changes."""
    old = (await world.replica.acquire("old", units=2)).json()
    await world.replica.call("POST", f"/leases/{old['lease_id']}/release", {"fencing_token": 1})
    new = (await world.replica.acquire("new", units=2)).json()
    before = await world.rows()
    answer = await world.replica.call("POST", f"/leases/{new['lease_id']}/release", {"fencing_token": 1})
    assert (answer.status_code, slug(answer)) == (409, "stale-token")
    answer = await world.replica.call("POST", f"/leases/{old['lease_id']}/renew", {"fencing_token": 1})
    assert (answer.status_code, answer.json()["reason"]) == (410, "released")
    assert await world.rows() == before


async def test_an_administrator_may_act_for_others(world: World) -> None:
    lease = (await world.replica.acquire("r")).json()
    released = await world.replica.call("POST", f"/leases/{lease['lease_id']}/release", {"fencing_token": 1}, by="root")
    assert (released.status_code, released.json()["released_units"]) == (200, 1)


async def test_a_clock_that_is_nearly_right(world: World) -> None:
    """Up to a minute ahead is accepted, and any time in the past; an invalid time is not."""
    for value, status in (
        (utc_now() + timedelta(seconds=50), 200),
        (utc_now() - timedelta(days=400), 200),
        ("soon", 422),
        ("2026-01-01T12:00:00", 422),
    ):
        header = value if isinstance(value, str) else value.isoformat()
        answer = await world.replica.call(
            "POST", "/lease-pools/sim-a/leases", {"request_id": "r"}, **{"Slipway-Sent-At": header}
        )
        assert answer.status_code == status, answer.text


async def test_leases_by_pool_and_tenant(world: World) -> None:
    await world.broker.declare(terms(limit=2), terms("sim-b", limit=2))
    for pool, tenant in (("sim-a", "x"), ("sim-a", "y"), ("sim-b", "x")):
        await world.replica.acquire(f"{pool}-{tenant}", pool, tenant=f"team-{tenant}")

    async def listed(query: str) -> list[str]:
        answer = await world.replica.call("GET", f"/leases{query}", by="reader")
        assert answer.status_code == 200, answer.text
        return [row["request_id"] for row in answer.json()["items"]]

    assert await listed("") == ["sim-a-x", "sim-a-y", "sim-b-x"]
    assert await listed("?pool=sim-a") == ["sim-a-x", "sim-a-y"]
    assert await listed("?tenant=team-x") == ["sim-a-x", "sim-b-x"]
    assert await listed("?pool=sim-a&tenant=team-y&limit=1") == ["sim-a-y"]


async def test_every_write_is_documented_with_its_body(world: World) -> None:
    """The OpenAPI document names a body for each write."""
    paths = (await world.replica.call("GET", "/openapi.json", by="reader")).json()["paths"]
    writes = [
        (path, method, operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
        if method != "get" and not path.startswith("/dead-letters")
    ]
    assert len(writes) > 5
    for path, method, operation in writes:
        assert method == "delete" or "requestBody" in operation, (method, path)
