"""Holders of a lease over HTTP: one request id used by several processes, and tokens bound to a lease."""

import asyncio
import json
from typing import Any, Final

import pytest

from slipway_common.base.redaction import redacted
from slipway_lease_broker.http import leases as routes
from tests.support import harness
from tests.support.lease_broker import acquire_request, after, terms
from tests.support.lease_broker_http import World, instant, slug

FIRST: Final = "host-1:10:aaaa"
SECOND: Final = "host-2:20:bbbb"


async def test_a_lease_shows_its_holder(world: World) -> None:
    """The one who asked; also in the list, and for a request that had to wait."""
    held = (await world.replica.acquire("r", units=2, holder=FIRST)).json()
    assert (held["holder"], held["unleased_by"]) == (FIRST, None)
    assert (await world.replica.acquire("next", holder=SECOND)).status_code == 202
    path = f"/leases/{held['lease_id']}/release"
    await world.replica.call("POST", path, {"fencing_token": held["fencing_token"], "holder": FIRST})
    listed = (await world.replica.call("GET", "/leases?pool=sim-a")).json()["items"]
    assert [lease["holder"] for lease in listed] == [SECOND]


@pytest.mark.parametrize("holder", ["", "x" * 201, "a\0b", 7])
async def test_a_holder_has_a_name(world: World, holder: Any) -> None:
    answer = await world.replica.acquire("r", holder=holder)
    assert answer.status_code == 422, answer.text


async def renewed(world: World, lease: Any, **headers: str) -> Any:
    body = {"fencing_token": lease["fencing_token"]}
    return await world.replica.call("POST", f"/leases/{lease['lease_id']}/renew", body, **headers)


async def released(world: World, lease: Any, **fields: Any) -> Any:
    body = {"fencing_token": lease["fencing_token"]} | fields
    return await world.replica.call("POST", f"/leases/{lease['lease_id']}/release", body)


async def test_two_processes_with_one_request_id(world: World) -> None:
    """The second is refused, told who holds it and what to do, and can end nothing of the first. The first gets its
    lease again."""
    held = (await world.replica.acquire("r", holder=FIRST)).json()
    before = await world.rows()
    for _ in range(2):
        refused = await world.replica.acquire("r", holder=SECOND)
        assert (refused.status_code, slug(refused)) == (409, "request-in-use")
        assert (refused.json()["holder"], refused.json()["since"]) == (FIRST, after(0).isoformat())
        assert "--join" in refused.json()["detail"]
        takeover = after(225).isoformat(timespec="seconds")
        assert f"if it has ended, ask again after {takeover}" in refused.json()["detail"]
    cancelled = await world.replica.call("DELETE", f"/lease-pools/sim-a/requests/r?holder={SECOND}")
    assert (cancelled.status_code, slug(cancelled)) == (409, "request-in-use")
    assert [row for row in (await world.rows())[0] if row not in before[0]] == []
    again = (await world.replica.acquire("r", holder=FIRST)).json()
    assert (again["lease_id"], again["fencing_token"]) == (held["lease_id"], held["fencing_token"])


@pytest.mark.parametrize(
    ("renewed_at", "asks", "status"), [(0, 225, 409), (0, 226, 200), (100, 325, 409), (100, 326, 200)]
)
async def test_a_lease_that_was_not_renewed(world: World, renewed_at: float, asks: float, status: int) -> None:
    """Another process takes it over three quarters of the TTL after its grant or last renewal. The first can then
    neither renew nor release it, and does not get it back."""
    held = (await world.replica.acquire("r", holder=FIRST)).json()
    if renewed_at:
        await world.broker.set_clock(renewed_at)
        assert (await renewed(world, held)).status_code == 200
    await world.broker.set_clock(asks)
    answer = await world.replica.acquire("r", holder=SECOND)
    assert answer.status_code == status, answer.text
    if status == 200:
        taken = answer.json()
        assert (taken["lease_id"], taken["holder"], taken["units"]) == (held["lease_id"], SECOND, 1)
        assert taken["fencing_token"] > held["fencing_token"]
        assert taken["expires_at"] == instant(asks + 300)
        assert [slug(await lost(world, held)) for lost in (renewed, released)] == ["stale-token", "stale-token"]
        assert slug(await world.replica.acquire("r", holder=FIRST)) == "request-in-use"
        assert (await released(world, taken, holder=SECOND)).json()["released_units"] == 1
        assert await world.broker.held() == 0


async def test_processes_that_join(world: World) -> None:
    """They hold one lease, and the last release counts, however often one of them repeats its own."""
    held = (await world.replica.acquire("r", holder=FIRST)).json()
    joined = (await world.replica.acquire("r", holder=SECOND, join=True)).json()
    assert (joined["lease_id"], joined["fencing_token"]) == (held["lease_id"], held["fencing_token"])
    unnamed = await released(world, held)
    assert (unnamed.status_code, slug(unnamed), unnamed.json()["holders"]) == (409, "holder-unknown", [FIRST, SECOND])
    for _ in range(2):
        answer = await released(world, held, holder=FIRST)
        assert (answer.status_code, answer.json()["released_units"], answer.json()["remaining"]) == (200, 0, 1)
    assert (await renewed(world, joined)).json()["holder"] == SECOND
    for units in (1, 0):
        assert (await released(world, held, holder=SECOND)).json()["released_units"] == units
    assert await world.broker.held() == 0


async def test_the_request_of_joined_processes_is_cancelled_for_one(world: World) -> None:
    await world.replica.acquire("r", holder=FIRST)
    await world.replica.acquire("r", holder=SECOND, join=True)
    path = "/lease-pools/sim-a/requests/r"
    assert slug(await world.replica.call("DELETE", path)) == "holder-unknown"
    for holder, units in ((SECOND, 0), (FIRST, 1)):
        answer = await world.replica.call("DELETE", f"{path}?holder={holder}")
        assert (answer.status_code, answer.json()["released_units"]) == (200, units)
    assert await world.broker.held() == 0


async def test_an_expiry_ends_a_joined_lease_for_all(world: World) -> None:
    held = (await world.replica.acquire("r", holder=FIRST)).json()
    await world.replica.acquire("r", holder=SECOND, join=True)
    await world.broker.set_clock(301)
    await world.broker.decide()
    assert (await renewed(world, held)).status_code == 410
    assert (await world.replica.acquire("r", holder=SECOND)).status_code == 410


async def test_a_holder_without_a_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As before it counts as the holder, in any order; a line is logged once for each caller."""
    noticed: list[str] = []
    monkeypatch.setattr(routes, "UNNAMED", set())
    monkeypatch.setattr(routes.LOG, "info", lambda _, caller: noticed.append(caller))
    held = (await world.replica.acquire("r", by="ben")).json()
    named: dict[str, str] = {"holder": FIRST}
    for holder in ({}, named, {}, named):
        again = await world.replica.acquire("r", by="ben", **holder)
        assert (again.status_code, again.json()["lease_id"]) == (200, held["lease_id"])
    assert slug(await world.replica.acquire("r", by="ben", holder=SECOND)) == "request-in-use"
    await world.replica.acquire("another")
    assert noticed == ["ben", "ann"]
    assert (await world.replica.acquire("j", join=True)).status_code == 422


async def test_the_newest_of_two_waiting_processes_gets_the_lease(world: World) -> None:
    """The answer to an older one that still waits names the holder."""
    held = (await world.replica.acquire("held", units=2)).json()
    here = world.replica
    older = asyncio.create_task(here.acquire("next", holder=FIRST, wait_seconds=60))
    await harness.until(lambda: here.grant_waiters.waiting_callers == 1)
    newer = asyncio.create_task(here.acquire("next", holder=SECOND, wait_seconds=60))
    await harness.until(lambda: here.grant_waiters.waiting_callers == 2)
    refused = await here.call("DELETE", f"/lease-pools/sim-a/requests/next?holder={FIRST}")
    assert (slug(refused), refused.json()["holder"]) == ("request-in-use", SECOND)
    await released(world, held)
    first, second = await asyncio.gather(older, newer)
    assert (second.status_code, second.json()["holder"]) == (200, SECOND)
    assert (first.status_code, slug(first), first.json()["holder"]) == (409, "request-in-use", SECOND)


async def test_two_processes_in_one_batch(world: World) -> None:
    """One of them gets the grant, and the other one is refused."""
    async with world.broker.pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("SELECT 1 FROM lease_pools FOR UPDATE")
            first = asyncio.create_task(world.replica.call("DELETE", "/lease-pools/sim-a/requests/none"))
            await world.broker.until_waiting(first)
            both = [asyncio.create_task(world.replica.acquire("r", holder=name)) for name in (FIRST, SECOND)]
            await harness.until(lambda: len(world.replica.group_commit._queues.get("sim-a", ())) == 2)
        answers = await asyncio.gather(*both)
        await first
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    (granted,) = (answer.json() for answer in answers if answer.status_code == 200)
    assert {answer.json()["holder"] for answer in answers} == {granted["holder"]}


async def test_the_next_attempt_of_one_of_several(world: World) -> None:
    """It does not end the lease that another process holds, too."""
    held = (await world.replica.acquire("r", holder=FIRST)).json()
    await world.replica.acquire("r", holder=SECOND, join=True)
    replaced = {"lease_id": held["lease_id"], "fencing_token": held["fencing_token"]}
    assert (await world.replica.acquire("r2", holder=FIRST, replaces=replaced)).status_code == 200
    assert (await renewed(world, held)).status_code == 200


async def bound(world: World, lease: Any, **fields: Any) -> dict[str, str]:
    """Headers with a token that is bound to this lease."""
    body = {"fencing_token": lease["fencing_token"]} | fields
    answer = await world.replica.call("POST", f"/leases/{lease['lease_id']}/token", body)
    assert answer.status_code == 200, answer.text
    assert list(answer.json()) == ["token"]
    return {"Authorization": f"Bearer {answer.json()['token']}"}


async def test_a_token_bound_to_a_lease(world: World) -> None:
    """It renews and releases its lease, and repeats the request; another call replaces it, and the end of the lease
    leaves it a late release."""
    held = (await world.replica.acquire("r", holder=FIRST, tenant="ann", operation="destroy")).json()
    path, token = f"/leases/{held['lease_id']}", {"fencing_token": held["fencing_token"]}
    old = await bound(world, held)
    headers = await bound(world, held)

    async def call(method: str, where: str, body: Any = None, by: dict[str, str] = headers) -> Any:
        return await world.replica.call(method, where, body, by="", **by)

    assert slug(await call("POST", f"{path}/renew", token, by=old)) == "unknown-token"
    for what in ("renew", "heartbeat"):
        assert (await call("POST", f"{path}/{what}", token)).status_code == 200
    again = {"request_id": "r", "operation": "destroy", "holder": SECOND}
    repeated = await call("POST", "/lease-pools/sim-a/leases", again)
    assert (repeated.status_code, repeated.json()["holder"]) == (200, FIRST)
    assert slug(await call("POST", f"{path}/renew", {"fencing_token": 9})) == "stale-token"
    assert (await call("POST", f"{path}/release", token)).json()["released_units"] == 1
    await world.broker.set_clock(3600)
    assert (await call("POST", f"{path}/release", token | {"throttled": True})).status_code == 200
    assert (await call("POST", f"{path}/renew", token)).status_code == 410
    await world.broker.set_clock(90_000)
    assert slug(await call("POST", f"{path}/release", token)) == "unknown-token"


#   what became of the token of its owner → refusal of a repeated request
NO_LONGER_VALID: Final = [
    ("revoked", "owner-without-token"),
    ({"expires_at": "2020-01-01T00:00:00Z"}, "owner-without-token"),
    (None, "owner-without-token"),  # removed
    ({"scopes": ["read"]}, "scope-missing"),
]


@pytest.mark.parametrize(("change", "expected"), NO_LONGER_VALID)
async def test_the_token_of_a_lease_whose_owner_was_revoked(world: World, change: Any, expected: str) -> None:
    """It renews and releases what it has, with evidence, and asks for nothing more: who revokes a token expects that
    nothing is acquired in its name."""
    held = (await world.replica.acquire("r", holder=FIRST)).json()
    path, token = f"/leases/{held['lease_id']}", {"fencing_token": held["fencing_token"]}
    headers = await bound(world, held)
    tokens = world.replica.app.state.tokens
    entries = json.loads(tokens.path.read_bytes())
    (ann,) = [entry for entry in entries if entry["name"] == "ann"]
    if change == "revoked":
        tokens.revoked |= {ann["sha256"]}
    else:
        changed = [] if change is None else [ann | change]
        tokens.path.write_text(json.dumps([entry for entry in entries if entry["name"] != "ann"] + changed))
    before = await world.rows()
    refused = await world.replica.call("POST", "/lease-pools/sim-a/leases", {"request_id": "r"}, by="", **headers)
    assert (refused.status_code, slug(refused)) == (403, expected)
    assert await world.rows() == before
    renewed = await world.replica.call("POST", f"{path}/renew", token, by="", **headers)
    assert renewed.status_code == 200
    released = await world.replica.call("POST", f"{path}/release", token | {"throttled": True}, by="", **headers)
    assert released.json()["released_units"] == 1
    assert "throttled" in await world.broker.pool.fetchval("SELECT string_agg(kind, ' ') FROM history")


async def test_the_token_of_a_lease_whose_owner_never_had_one(world: World) -> None:
    """A service that acquires over Kafka: no token of it was revoked."""
    await world.broker.send(acquire_request("k"))
    (grant,) = await world.broker.grants()
    bind = {"fencing_token": grant.fencing_token}
    created = await world.replica.call("POST", f"/leases/{grant.lease_id}/token", bind, by="root")
    headers = {"Authorization": f"Bearer {created.json()['token']}"}
    refused = await world.replica.call("POST", "/lease-pools/sim-a/leases", {"request_id": "k"}, by="", **headers)
    assert (refused.status_code, slug(refused)) == (403, "owner-without-token")
    assert refused.json()["detail"].startswith(f"none is named {grant.owner}: ")


async def test_a_token_of_a_lease_reaches_nothing_else(world: World) -> None:
    """No other lease, no other request, no route but its own, and nothing at another lease-broker's Boskos."""
    held = (await world.replica.acquire("r", holder=FIRST)).json()
    other = (await world.replica.acquire("other")).json()
    headers = await bound(world, held)
    await world.broker.declare(terms("sim-b"))
    before = await world.rows()
    token, other_path = {"fencing_token": held["fencing_token"]}, f"/leases/{other['lease_id']}"
    calls: list[tuple[str, str, Any]] = [
        ("POST", f"{other_path}/renew", {"fencing_token": other["fencing_token"]}),
        ("POST", f"{other_path}/release", {"fencing_token": other["fencing_token"]}),
        ("POST", "/lease-pools/sim-a/leases", {"request_id": "new"}),
        ("POST", "/lease-pools/sim-a/leases", {"request_id": "other"}),
        ("POST", "/lease-pools/sim-b/leases", {"request_id": "r"}),
        ("POST", "/lease-pools/sim-a/leases", {"request_id": "r", "replaces": token | {"lease_id": other["lease_id"]}}),
        ("POST", f"/leases/{held['lease_id']}/confirm", token),
        ("POST", f"/leases/{held['lease_id']}/token", token),
        ("GET", f"/leases/{held['lease_id']}", None),
        ("DELETE", "/lease-pools/sim-a/requests/r", None),
    ]
    for method, path, body in calls:
        answer = await world.replica.call(method, path, body, by="", **headers)
        assert (answer.status_code, slug(answer)) == (403, "lease-token"), path
    assert await world.rows() == before


async def test_a_token_is_for_holders_of_live_leases(world: World) -> None:
    """By their owner, with the fencing token; for one of several holders, by name."""
    held = (await world.replica.acquire("r", holder=FIRST)).json()
    path, body = f"/leases/{held['lease_id']}/token", {"fencing_token": held["fencing_token"]}
    before = await world.rows()
    for by, sent, status, expected in (
        ("ben", body, 403, "wrong-owner"),
        ("cid", body, 403, "scope-missing"),
        ("ann", {"fencing_token": 9}, 409, "stale-token"),
        ("ann", body | {"holder": SECOND}, 409, "holder-unknown"),
        ("ann", {}, 422, "invalid-request"),
    ):
        answer = await world.replica.call("POST", path, sent, by=by)
        assert (answer.status_code, slug(answer)) == (status, expected)
    assert await world.rows() == before
    await world.replica.acquire("r", holder=SECOND, join=True)
    assert slug(await world.replica.call("POST", path, body)) == "holder-unknown"
    first, second = [await bound(world, held, holder=name) for name in (FIRST, SECOND)]
    release = f"/leases/{held['lease_id']}/release"
    for headers, units in ((first, 0), (first, 0), (second, 1)):
        answer = await world.replica.call("POST", release, body, by="", **headers)
        assert answer.json()["released_units"] == units
    assert (await world.replica.call("POST", path, body)).status_code == 410


async def test_a_token_of_a_holder_without_a_name(world: World) -> None:
    """A start that was charged as a lease has none yet; its process may tell it for the first time here."""
    start = {"request_id": "u", "started_at": after(0).isoformat()}
    charged = await world.replica.call("POST", "/lease-pools/sim-a/unleased", {"starts": [start]})
    (lease,) = charged.json()["items"]
    headers = await bound(world, lease, holder=FIRST)
    path, body = f"/leases/{lease['lease_id']}/release", {"fencing_token": lease["fencing_token"], "holder": FIRST}
    assert (await world.replica.call("POST", path, body, by="", **headers)).json()["released_units"] == 1


async def test_a_taken_over_lease_has_no_tokens(world: World) -> None:
    held = (await world.replica.acquire("r", holder=FIRST)).json()
    headers = await bound(world, held)
    await world.broker.set_clock(226)
    taken = (await world.replica.acquire("r", holder=SECOND)).json()
    path = f"/leases/{held['lease_id']}/renew"
    answer = await world.replica.call("POST", path, {"fencing_token": taken["fencing_token"]}, by="", **headers)
    assert slug(answer) == "unknown-token"


async def test_a_token_of_a_lease_is_not_shown(world: World) -> None:
    """Its hash alone is stored, and a line of the log that quoted it would be redacted."""
    held = (await world.replica.acquire("r", holder=FIRST)).json()
    secret = (await bound(world, held))["Authorization"].removeprefix("Bearer ")
    assert secret.rpartition(".")[2] not in str(await world.rows())
    assert secret.rpartition(".")[2] not in redacted(f"refused {secret} of a caller")
    assert "sha256" not in (await world.replica.call("GET", f"/leases/{held['lease_id']}")).text
