"""The HTTP API of the provisioner on PostgreSQL: refusals, registrations, reports of machines, lists."""

from pathlib import Path
from typing import Any, Final

import pytest

from slipway_api.events.lease import LeaseRequested
from tests.support.cloud import ReplyLost
from tests.support.provisioner import Provisioner, administrator, after, declared, report, revision_id
from tests.support.running import running


def demand_body(**changes: Any) -> dict[str, Any]:
    return {"pending": 1, "source": "q", "observed_at": after(0).isoformat()} | changes


WRITE: Final = ("demand:write:linux",)
NOBODY: Final = "00000000-0000-7000-8000-000000000000"
#        method, path, body, scopes, status, type
BAD: Final[list[tuple[str, str, Any, tuple[str, ...], int, str]]] = [
    ("PUT", "/pools/linux/demand", demand_body(), ("demand:write:other",), 403, "scope-missing"),
    ("PUT", "/pools/unheard-of/demand", demand_body(), ("admin",), 404, "unknown-pool"),
    ("PUT", "/pools/linux/demand", demand_body(observed_at=after(61).isoformat()), WRITE, 422, "demand-refused"),
    ("PUT", "/pools/linux/demand", demand_body(pending=-1), WRITE, 422, "invalid-request"),
    ("PUT", "/pools/linux/demand", demand_body(source="x" * 2_000_000), WRITE, 413, "body-too-large"),
    ("PUT", "/declaration", declared(), WRITE, 403, "scope-missing"),
    ("PUT", "/declaration", {"version": 2}, ("admin",), 422, "invalid-declaration"),
    (
        "PUT",
        "/declaration",
        declared() | {"metadata": {"owner": "test"}, "accounts": []},
        ("admin",),
        409,
        "declaration-refused",
    ),
    ("POST", "/launch-configs/nobody/pause", {"reason": "r"}, ("admin",), 404, "unknown-config"),
    ("POST", "/launch-configs/zone-a/resume", {"reason": "r"}, ("admin",), 409, "wrong-config-state"),
    ("POST", "/launch-configs/zone-a/pause", {"reason": ""}, ("admin",), 422, "invalid-request"),
    (
        "POST",
        "/stop-launching",
        {"scope": "pool", "scope_id": "linus", "reason": "r"},
        ("admin",),
        404,
        "unknown-target",
    ),
    ("POST", "/stop-launching", {"scope": "all", "reason": "r"}, WRITE, 403, "scope-missing"),
    (
        "POST",
        "/stop-launching",
        {"scope": "all", "reason": "r", "until": after(0).isoformat()},
        ("admin",),
        422,
        "until-passed",
    ),
    ("POST", "/launch-configs/zone-a/pause", {"reason": "\0"}, ("admin",), 422, "invalid-request"),
    ("PUT", "/pools/linux/demand", demand_body(source="\0"), WRITE, 422, "invalid-request"),
    ("GET", "/pools/%00", None, ("admin",), 422, "invalid-request"),
    ("GET", "/workers?pool=%00", None, ("admin",), 422, "invalid-request"),
    ("GET", "/pools/unheard-of", None, ("admin",), 404, "unknown-pool"),
    ("GET", "/pools/unheard-of/decisions", None, ("admin",), 404, "unknown-pool"),
    ("GET", "/launch-configs?pool=unheard-of", None, ("admin",), 404, "unknown-pool"),
    ("GET", "/launch-configs/nobody", None, ("admin",), 404, "unknown-config"),
    ("GET", "/workers?pool=unheard-of", None, ("admin",), 404, "unknown-pool"),
    ("GET", "/workers?state=asleep", None, ("admin",), 422, "invalid-request"),
    ("GET", "/workers/nobody", None, ("admin",), 404, "unknown-worker"),
    ("GET", f"/workers/{NOBODY}", None, ("admin",), 404, "unknown-worker"),
    ("GET", "/decisions/none", None, ("admin",), 404, "unknown-decision"),
    ("GET", f"/decisions/{NOBODY}", None, ("admin",), 404, "unknown-decision"),
    ("POST", f"/workers/{NOBODY}/terminate", {"reason": "r"}, ("admin",), 404, "unknown-worker"),
    ("POST", "/workers/nobody/terminate", {"reason": "r"}, ("admin",), 404, "unknown-worker"),
    ("POST", "/workers/nobody/terminate", {"reason": ""}, ("admin",), 422, "invalid-request"),
    ("POST", "/workers/nobody/terminate", {"reason": "r"}, WRITE, 403, "scope-missing"),
    ("POST", "/pools/linux/pause", {"reason": "r"}, WRITE, 403, "scope-missing"),
    ("POST", "/pools/unheard-of/pause", {"reason": "r"}, ("pools:write",), 404, "unknown-pool"),
    ("POST", "/pools/linux/pause", {"reason": "r", "until": after(0).isoformat()}, ("admin",), 422, "until-passed"),
    ("POST", "/pools/linux/resume", {"reason": "r"}, ("admin",), 409, "wrong-pool-state"),
    ("POST", "/pools/unheard-of/resume", {"reason": "r"}, ("admin",), 404, "unknown-pool"),
    ("POST", "/pools/linux/freeze", {"reason": "r"}, WRITE, 403, "scope-missing"),
    ("POST", "/pools/linux/freeze", {"reason": ""}, ("admin",), 422, "invalid-request"),
    ("POST", "/pools/unheard-of/freeze", {"reason": "r"}, ("pools:write",), 404, "unknown-pool"),
    ("POST", "/pools/unheard-of/unfreeze", {"reason": "r"}, ("admin",), 404, "unknown-pool"),
    ("POST", "/pools/linux/unfreeze", {"reason": "r"}, ("admin",), 409, "wrong-pool-state"),
    ("POST", "/workers/register", {"batch_id": "x", "secret": "s", "instance_id": "i"}, (), 422, "invalid-request"),
    ("POST", "/workers/nobody/heartbeat", None, (), 403, "foreign-token"),
]
CHANGED: Final = """
SELECT (SELECT count(*) FROM demand) + (SELECT count(*) FROM launch_stop) + (SELECT count(*) FROM outbox)
    + (SELECT sum(revision) FROM launch_config) + (SELECT sum(revision) FROM worker_pool)"""


async def test_refused_requests(provisioner: Provisioner, tmp_path: Path) -> None:
    """They return a problem with a stable type and change nothing."""
    await provisioner.declare()
    before = await provisioner.database.fetchval(CHANGED)
    for method, path, body, scopes, status, kind in BAD:
        async with administrator(provisioner, tmp_path, scopes) as client:
            answer = await client.request(method, path, json=body)
        case = (method, path, body, scopes)
        assert (answer.status_code, answer.json()["type"]) == (status, f"urn:slipway:problem:{kind}"), case
        assert answer.headers["content-type"] == "application/problem+json", case
        assert await provisioner.database.fetchval(CHANGED) == before, case


async def test_writes_need_a_token(provisioner: Provisioner) -> None:
    """The token must be known."""
    for token, kind in (("", "no-token"), ("guess", "unknown-token")):
        async with provisioner.client(token=token) as client:
            answer = await client.put("/pools/linux/demand", json=demand_body())
        assert (answer.status_code, answer.json()["type"]) == (401, f"urn:slipway:problem:{kind}")


async def test_registration(provisioner: Provisioner) -> None:
    """It needs the batch secret, binds each instance once, and is repeatable until the token was used."""
    first, second = await provisioner.starting(2)
    batch = first.batch_id

    async def refused_as(instance_id: str, **changes: Any) -> str:
        kind: str = (await provisioner.register(instance_id, batch, **changes)).json()["type"]
        return kind.rpartition(":")[2]

    assert await refused_as("i-0001", secret="guess") == "bad-secret"
    lost = (await provisioner.register("i-0001", batch)).json()
    again = (await provisioner.register("i-0001", batch)).json()
    assert (lost["worker_id"], lost["pool_id"]) == (again["worker_id"], "linux") == (first.id, "linux")
    async with provisioner.client(token=lost["token"]) as client:
        stale = await client.post(f"/workers/{first.id}/heartbeat")
        assert (stale.status_code, stale.json()["type"]) == (403, "urn:slipway:problem:foreign-token")
    async with provisioner.client(token=again["token"]) as client:
        foreign = await client.post(f"/workers/{second.id}/heartbeat")
        assert (foreign.status_code, foreign.json()["type"]) == (403, "urn:slipway:problem:foreign-token")
        assert (await client.post(f"/workers/{first.id}/heartbeat")).status_code == 200
    assert await refused_as("i-0001") == "already-registered"
    assert await refused_as("i-9999") == "orphan-instance"
    assert await provisioner.states() == {"running": 1, "starting": 1}


async def test_an_instance_of_another_batch(provisioner: Provisioner) -> None:
    """It is refused in this batch."""
    await provisioner.starting(1)
    await provisioner.demand(report(2, at=1))
    await provisioner.plan()
    (request,) = await provisioner.published(LeaseRequested)
    await provisioner.leases(provisioner.granted(request))
    provisioner.cloud.script.append(ReplyLost)
    await provisioner.launch()
    calling = (await provisioner.workers())[1]
    answer = await provisioner.register("i-0001", calling.batch_id)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:slipway:problem:foreign-instance")


async def test_invalid_texts_of_machines(provisioner: Provisioner) -> None:
    """They are refused as invalid and change nothing."""
    ((worker, client),) = await running(provisioner)
    before = await provisioner.worker()
    claim = {"task_id": "t\0", "source": "q", "at": after(0).isoformat()}
    for answer in (await client.post("/claimed", json=claim), await provisioner.register("\0", worker.batch_id)):
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:slipway:problem:invalid-request")
    assert await provisioner.worker() == before


async def test_reports_of_a_machine(provisioner: Provisioner) -> None:
    """Reports are accepted in order and repeatedly, but not after the end; times too far off are clamped."""
    ((worker, client),) = await running(provisioner)
    await provisioner.set_clock(1000)
    at = {"at": after(1000).isoformat()}
    reports: list[tuple[str, dict[str, Any]]] = [
        ("/idle", at),
        ("/claimed", {"task_id": "t", "source": "q", "at": after(0).isoformat()}),
        ("/claimed", {"task_id": "t", "source": "q", "at": after(0).isoformat()}),
        ("/idle", {"at": after(9999).isoformat()}),
        ("/error", {"kind": "disk", "detail": "full"}),
        ("/stopped", at),
    ]
    assert [(await client.post(path, json=body)).status_code for path, body in reports] == [200] * len(reports)
    assert [type(event).__name__ for event in await provisioner.events()] == [
        "WorkerClaimed",
        "WorkerIdle",
        "WorkerErrorReported",
        "WorkerStopped",
    ]
    claim = await provisioner.database.fetchrow("SELECT started_at, ended_at FROM claim")
    assert tuple(claim) == (after(880), after(1005))
    for path, body in reports:
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()["type"]) == (410, "urn:slipway:problem:worker-gone")
    assert await provisioner.events() == []
    assert (await provisioner.worker()).id == worker.id


@pytest.mark.parametrize(("ended_at", "replacements"), [(20.0, 0), (19.9, 1)])
async def test_a_task_that_ends_at_the_instant_of_a_report(
    provisioner: Provisioner, ended_at: float, replacements: int
) -> None:
    """The report still has it, so that it needs no other worker, also if the database's clock is slower than the
    machine's. One that ended before the report is not in it."""
    ((_, client),) = await running(provisioner)
    await client.post("/claimed", json={"task_id": "t", "source": "q", "at": after(10).isoformat()})
    await provisioner.set_clock(17)
    await client.post("/stopped", json={"at": after(ended_at).isoformat()})
    await provisioner.demand(report(0, 1, at=20))
    await provisioner.plan()
    assert (await provisioner.states()).get("requested", 0) == replacements


async def test_a_machine_that_its_provider_takes_back(provisioner: Provisioner) -> None:
    """Its worker leaves, after its task if it has one, and no stage ends; another one starts in its place. A notice
    counts and is published once, and a recommendation not after an interruption."""
    ((worker, client),) = await running(provisioner)
    await provisioner.demand(report(1, 1, at=1))
    at = {"at": after(0).isoformat()}
    await client.post("/claimed", json=at | {"task_id": "t", "source": "q"})
    await provisioner.events()
    rebalance = at | {"kind": "rebalance", "zone_id": "euw1-az2"}
    interruption = at | {"kind": "interruption", "ends_at": after(120).isoformat()}
    reason = "its provider recommends replacing the machine in zone euw1-az2"
    for body in (rebalance, rebalance, interruption, interruption, rebalance):
        answer = await client.post("/notice", json=body)
        assert (answer.status_code, answer.json()) == (200, {"terminate": True, "reason": reason})
    events = await provisioner.events()
    assert [type(event).__name__ for event in events] == ["WorkerNoticed", "WorkerStopping", "WorkerNoticed"]
    first, stopping, second = events
    assert stopping.outcome is None
    assert [(event.kind, event.ends_at) for event in (first, second)] == [
        ("rebalance", None),
        ("interruption", after(120)),
    ]
    assert {event.capacity_key for event in (first, second)} == {"sim-a/sim-1/zone-a/m5.large/on-demand"}
    noticed = await provisioner.worker()
    assert (noticed.id, noticed.notice, noticed.is_finishing) == (worker.id, "interruption", True)
    await provisioner.plan()
    assert await provisioner.states() == {"stopping": 1, "requested": 1}
    await client.post("/stopped", json=at)
    assert (await client.post("/notice", json=interruption)).status_code == 410
    assert await provisioner.database.fetchval("SELECT sum(failures) FROM launch_config_outcomes") in (None, 0)


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "", "at": "2026-01-01T12:00:00Z"},
        {"kind": "earthquake", "at": "2026-01-01T12:00:00Z"},
        {"kind": "rebalance"},
        {"kind": "interruption", "at": "2026-01-01T12:00:00Z", "ends_at": "soon"},
        {"kind": "rebalance", "at": "2026-01-01T12:00:00Z", "zone_id": "a b"},
    ],
)
async def test_a_notice_that_cannot_be_read(provisioner: Provisioner, body: dict[str, str]) -> None:
    """It is refused and changes nothing."""
    ((_, client),) = await running(provisioner)
    before = await provisioner.worker()
    assert (await client.post("/notice", json=body)).status_code == 422
    assert await provisioner.worker() == before


async def test_a_wrong_state(provisioner: Provisioner) -> None:
    """A stopping worker may finish its task but cannot report errors."""
    ((_, client),) = await running(provisioner)
    await provisioner.database.execute("UPDATE worker SET state = 'stopping'")
    answer = await client.post("/error", json={"kind": "disk"})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:slipway:problem:wrong-state")


async def test_lists(provisioner: Provisioner) -> None:
    """Lists for people contain no secrets."""
    await running(provisioner)
    async with provisioner.client() as client:
        paths = ("/pools", "/pools/linux", "/pools/linux/decisions", "/launch-configs", "/workers?state=running")
        answers = {path: (await client.get(path)).json() for path in paths}
    (listed,) = answers["/pools"]["items"]
    assert listed.items() <= answers["/pools/linux"].items()
    assert answers["/pools/linux"]["running"] == 1
    assert answers["/pools/linux/decisions"]["items"][-1]["reason"] == "1 needed"
    assert [c["id"] for c in answers["/launch-configs"]["items"]] == [revision_id()]
    (worker,) = answers["/workers?state=running"]["items"]
    assert "token_sha256" not in worker


async def test_a_dry_run_changes_nothing(provisioner: Provisioner, tmp_path: Path) -> None:
    """It lists the same differences as applying."""
    async with administrator(provisioner, tmp_path) as client:
        dry = (await client.put("/declaration?dry_run=true", json=declared())).json()
        assert await provisioner.database.fetchval("SELECT count(*) FROM account") == 0
        wet = (await client.put("/declaration", json=declared())).json()
        assert (dry["items"], dry["applied"], wet["applied"]) == (wet["items"], False, True)
        assert (await client.put("/declaration", json=declared())).json()["items"] == []
