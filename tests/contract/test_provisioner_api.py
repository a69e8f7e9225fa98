"""HTTP API of the provisioner for people: the fields that the command line and the live screen use."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from slipway_api.events.lease import LeaseCancelRequested, LeaseReleaseRequested, LeaseRequested
from slipway_api.events.pool import PoolPaused, PoolResumed
from slipway_api.events.weight import SharedWindow, StageHealth
from slipway_api.events.worker import Outcome, Result, Scope, Stage, WorkerStopped, WorkerStopping
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.providers.port import Refused
from tests.support.provisioner import (
    Provisioner,
    administrator,
    after,
    declared,
    report,
    revision_id,
    weight,
)


def refused() -> Refused:
    outcome = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, "", "InsufficientCapacity")
    return Refused(outcome, "no")


async def read(provisioner: Provisioner, path: str, status: int = 200) -> Any:
    async with provisioner.client() as client:
        answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_pool_backlog(provisioner: Provisioner) -> None:
    """`needed` is that of the newest decision, and the backlog that of fresh sources with pending tasks."""
    await provisioner.declare(declared(max_capacity=3))
    pool = await read(provisioner, "/pools/linux")
    assert {name: pool[name] for name in ("needed", "wanted", "backlog_seconds")} == dict.fromkeys(
        ("needed", "wanted", "backlog_seconds")
    )
    await provisioner.demand(report(5), report(0, 2, source="busy"))
    await provisioner.plan()
    await provisioner.set_clock(40)
    pool = await read(provisioner, "/pools/linux")
    shown = ("pending", "claimed", "wanted", "needed", "serving", "running", "leaving", "backlog_seconds")
    assert {name: pool[name] for name in shown} == {
        "pending": 5,
        "claimed": 2,
        "wanted": 3,
        "needed": 3,
        "serving": 3,
        "running": 0,
        "leaving": 0,
        "backlog_seconds": 40.0,
    }
    await provisioner.demand(report(4, at=50, source="ahead"))
    await provisioner.plan()
    assert (await read(provisioner, "/pools/linux"))["needed"] == 0
    await provisioner.set_clock(301)
    assert (await read(provisioner, "/pools/linux"))["backlog_seconds"] == 251.0
    await provisioner.set_clock(351)
    assert (await read(provisioner, "/pools"))["items"][0]["backlog_seconds"] is None


async def test_sources(provisioner: Provisioner, tmp_path: Path) -> None:
    """Each source that has not ended, with who reported it, until when its report is valid and it protects workers."""
    await provisioner.declare()
    await provisioner.set_clock(10)
    await provisioner.demand(report(5, 2, at=5))
    async with administrator(provisioner, tmp_path, ["demand:write:linux"]) as client:
        body = {"pending": 1, "observed_at": after(9).isoformat(), "source": "a/b", "valid_for_seconds": 60}
        refused = (await client.put("/pools/linux/demand", json=body | {"observed_at": 1764000000})).json()
        assert refused["detail"].startswith("body/observed_at: must be a timestamp such as")
        assert (await client.put("/pools/linux/demand", json=body)).json() == {"stored": True}
    await provisioner.set_clock(100)
    ab, q = (await read(provisioner, "/demand?pool=linux"))["items"]
    assert q == {
        "pool_id": "linux",
        "source": "q",
        "state": "fresh",
        "pending": 5,
        "claimed": 2,
        "observed_at": after(5).isoformat().replace("+00:00", "Z"),
        "received_at": after(10).isoformat().replace("+00:00", "Z"),
        "valid_until": after(305).isoformat().replace("+00:00", "Z"),
        "protected_until": after(3905).isoformat().replace("+00:00", "Z"),
        "reported_by": "test",
    }
    assert [ab[name] for name in ("source", "state", "reported_by")] == ["a/b", "stale", "admin"]
    assert (await read(provisioner, "/pools/linux"))["stale_sources"] == 1
    assert (await read(provisioner, "/demand"))["items"] == [ab, q]
    assert (await read(provisioner, "/demand?pool=solaris", 404))["type"].endswith(":unknown-pool")


async def test_a_source_is_removed(provisioner: Provisioner, tmp_path: Path) -> None:
    """Once, by who may report demand of its pool; a report with a later time brings it back."""
    await provisioner.declare()
    await provisioner.demand(report(5, 2, source="a/b"))
    path = "/pools/linux/demand/a%2Fb"
    async with administrator(provisioner, tmp_path, ["demand:write:windows"]) as client:
        refused = await client.delete(path)
        assert (refused.status_code, refused.json()["type"]) == (403, "urn:slipway:problem:scope-missing")
    assert len((await read(provisioner, "/demand"))["items"]) == 1
    async with administrator(provisioner, tmp_path, ["demand:write:linux"]) as client:
        removed = await client.delete(path, params={"reason": "renamed"})
        assert removed.json() == {"pool_id": "linux", "source": "a/b", "pending": 5, "claimed": 2, "was_fresh": True}
        again = await client.delete(path)
        assert (again.status_code, again.json()["type"]) == (404, "urn:slipway:problem:unknown-source")
        unknown = await client.delete("/pools/solaris/demand/q")
        assert unknown.status_code == 403
    assert (await read(provisioner, "/demand"))["items"] == []
    (entry,) = (await read(provisioner, "/audit?kind=pool&limit=1"))["items"]
    assert [entry[name] for name in ("by", "action", "reason")] == ["admin", "remove demand source", "renamed"]
    assert entry["after"] == {"source": "a/b"}
    await provisioner.demand(report(1, at=1, source="a/b"))
    assert [source["pending"] for source in (await read(provisioner, "/demand"))["items"]] == [1]


async def test_the_backlog_of_a_report_from_the_future(provisioner: Provisioner) -> None:
    """It has not begun."""
    await provisioner.declare()
    await provisioner.demand(report(1, at=30))
    assert (await read(provisioner, "/pools/linux"))["backlog_seconds"] == 0.0


async def test_config_summary(provisioner: Provisioner) -> None:
    """Starts in flight and unfolded failures per window, accepted launches and failures over its life."""
    provisioner.cloud.script.append(refused())
    await provisioner.admitted(3)
    await provisioner.launch()
    (config,) = (await read(provisioner, "/launch-configs"))["items"]
    assert (config["launched"], config["failed"], config["probe_ready"], config["state_by"]) == (0, 3, False, "")
    assert config["stages"]["launch"] == {"in_flight": 0, "unfolded": 3, "window": 64}
    await provisioner.plan()
    (request,) = await provisioner.published(LeaseRequested)
    await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()
    await provisioner.register("i-0001", (await provisioner.workers())[-1].batch_id)
    health = StageHealth(probability=0.9, successes=0, failures=0, window=7, failures_folded=1)
    boots = StageHealth(probability=0.9, successes=1.5, failures=0, window=8, failures_folded=0, succeeded=4)
    tripped: dict[str, Any] = {"state": "probing", "tripped_stage": "launch", "probe_permit": 1, "probe_ready": True}
    await provisioner.weights(weight(stages={"launch": health, "boot": boots}, reason="tripped", **tripped))
    (config,) = (await read(provisioner, "/launch-configs?pool=linux"))["items"]
    assert (config["launched"], config["failed"], config["probe_ready"], config["health_state"]) == (
        3,
        3,
        True,
        "probing",
    )
    assert (config["starting"], config["running"], config["stopping"], config["booted"]) == (2, 1, 0, 4)
    assert config["stages"] == {
        "launch": {"in_flight": 0, "unfolded": 2, "window": 7},
        "boot": {"in_flight": 2, "unfolded": 0, "window": 8},
        "claim": {"in_flight": 1, "unfolded": 0, "window": 64},
    }


async def test_launch_configs_by_name(provisioner: Provisioner) -> None:
    await provisioner.declare(declared("zone-a", "zone-b", "zone-c"))
    found = await read(provisioner, "/launch-configs?name=zone-a&name=zone-c&name=zone-z")
    assert [row["id"] for row in found["items"]] == [revision_id("zone-a"), revision_id("zone-c")]


async def test_a_config_with_two_tripped_shares(provisioner: Provisioner) -> None:
    """The list names the same share as the decision."""
    await provisioner.declare()
    tripped = [
        SharedWindow(kind=kind, id=id_, stage="launch", version=1, window=64, state="tripped", reason=reason)
        for kind, id_, reason in (("credential", "sim-a", "denied"), ("quota", "sim-a/sim-1/m5", "no quota"))
    ]
    await provisioner.weights(weight(shared=tuple(tripped)))
    await provisioner.demand(report(1))
    await provisioner.plan()
    (decision, *_) = (await read(provisioner, "/pools/linux/decisions"))["items"]
    words = "tripped: quota sim-a/sim-1/m5: no quota"
    assert decision["details"]["configs"][revision_id()]["reason"] == f"{words}; no probe is due"
    (config,) = (await read(provisioner, "/launch-configs"))["items"]
    shown = ("health_state", "tripped_by", "tripped_by_id", "tripped_stage", "reason")
    expected = ["tripped", "quota", "sim-a/sim-1/m5", "launch", f"{revision_id()} {words}"]
    assert [config[name] for name in shown] == expected
    assert [(share["kind"], share["id"]) for share in config["shared"] if share["state"] == "tripped"] == [
        (share.kind, share.id) for share in tripped
    ]


async def test_one_config(provisioner: Provisioner) -> None:
    """The fields of the list with settings, weight record and the newest ten failures."""
    body = declared()
    body["worker_pools"][0]["launch_configs"][0]["settings"] = {"disk_gb": 40}
    await provisioner.declare(body)
    await provisioner.trust()
    provisioner.cloud.script.extend([refused()] * 2)
    for round_, pending in enumerate((3, 9)):
        await provisioner.set_clock(round_)
        await provisioner.demand(report(pending, at=round_))
        await provisioner.plan()
        (request,) = await provisioner.published(LeaseRequested)
        await provisioner.leases(provisioner.granted(request))
        await provisioner.launch()
    config = await read(provisioner, "/launch-configs/zone-a")
    (listed,) = (await read(provisioner, "/launch-configs"))["items"]
    assert config.items() >= listed.items()
    assert (config["settings"], config["record"]["reason"]) == ({"disk_gb": 40}, f"{config['id']} healthy")
    everybody = [worker.id for worker in await provisioner.workers()]
    assert [failure["worker_id"] for failure in config["recent_failures"]] == everybody[:1:-1]
    assert config["recent_failures"][0] == {
        "worker_id": everybody[-1],
        "at": after(1).isoformat().replace("+00:00", "Z"),
        "reason": "InsufficientCapacity",
    }
    await provisioner.weights(weight())
    assert (await read(provisioner, "/launch-configs/zone-a"))["record"]["launch_config_id"] == config["id"]


async def running(provisioner: Provisioner, pending: int = 1) -> list[tuple[Worker, str]]:
    """Registered workers and their tokens."""
    everybody = await provisioner.starting(pending)
    answers = [await provisioner.register(w.instance_id or "", w.batch_id) for w in everybody]
    await provisioner.events()
    return [(worker, answer.json()["token"]) for worker, answer in zip(everybody, answers, strict=True)]


async def send_report(provisioner: Provisioner, who: tuple[Worker, str], what: str, **body: Any) -> Any:
    async with provisioner.client(token=who[1]) as client:
        answer = await client.post(f"/workers/{who[0].id}/{what}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def at(seconds: float) -> str:
    return after(seconds).isoformat()


async def test_one_worker(provisioner: Provisioner) -> None:
    """Its timeline, decision, call and lease, without secrets and body."""
    (who,) = await running(provisioner)
    for seconds, what, body in ((5, "claimed", {"task_id": "t", "source": "q"}), (9, "idle", {})):
        await provisioner.set_clock(seconds)
        await send_report(provisioner, who, what, at=at(seconds), **body)
    worker = await read(provisioner, f"/workers/{who[0].id}")
    assert [(moment["what"], moment["detail"]) for moment in worker["timeline"]] == [
        ("requested", f"on {revision_id()}"),
        ("calling", f"batch {worker['batch_id']}"),
        ("launched", "i-0001"),
        ("registered", "i-0001"),
        ("claimed", "task t of q"),
        ("finished", "task t of q"),
    ]
    assert worker["timeline"][-1]["at"].replace("Z", "+00:00") == at(9)
    decision = await read(provisioner, f"/decisions/{worker['decision']['id']}")
    assert worker["decision"] == {name: decision[name] for name in ("id", "at", "reason", "launched")}
    assert (decision["reason"], decision["details"]["needed"]) == ("1 needed", 1)
    assert (worker["batch"]["state"], worker["batch"]["outcome"]) == ("known", "launched")
    assert (worker["lease"]["id"], worker["lease"]["state"]) == ("lease-1", "ended")
    assert not {"token_sha256", "token", "body", "traceparent"} & {*worker, *worker["batch"], *worker["lease"]}
    await provisioner.database.execute("TRUNCATE decision, launch_batch, lease, spend_usage")
    forgotten = await read(provisioner, f"/workers/{who[0].id}")
    assert (forgotten["decision"], forgotten["batch"], forgotten["lease"]) == (None, None, None)


async def test_workers_by_pool_and_state(provisioner: Provisioner) -> None:
    """Newest first; a misspelt state is answered with the valid ones."""
    await running(provisioner, 2)
    everybody = [worker["id"] for worker in (await read(provisioner, "/workers"))["items"]]
    assert everybody == [worker.id for worker in reversed(await provisioner.workers())]
    for query, expected in (("pool=linux&state=running", everybody), ("state=stopped", []), ("limit=1", everybody[:1])):
        found = (await read(provisioner, f"/workers?{query}"))["items"]
        assert [worker["id"] for worker in found] == expected, query
    assert "'requested', 'launching', 'starting'" in (await read(provisioner, "/workers?state=x", 422))["detail"]


# Terminating a worker


async def terminate(provisioner: Provisioner, worker: Worker, folder: Path) -> httpx2.Response:
    async with administrator(provisioner, folder, ["workers:terminate"]) as client:
        return await client.post(f"/workers/{worker.id}/terminate", json={"reason": "drill"})


async def failures(provisioner: Provisioner) -> int:
    counted: int = await provisioner.database.fetchval(
        "SELECT coalesce(sum(failures), 0)::int FROM launch_config_outcomes"
    )
    return counted


async def test_terminating_a_waiting_worker(provisioner: Provisioner, tmp_path: Path) -> None:
    """Its request is cancelled or its unit released, and a replacement is requested."""
    (request,) = await provisioner.requested(3)
    first, second, _ = await provisioner.workers()
    answer = await terminate(provisioner, first, tmp_path)
    assert answer.json()["reason"] == "terminated by admin: drill"
    assert (answer.json()["id"], answer.json()["state"]) == (first.id, "stopped")
    events = await provisioner.events()
    assert [(e.request_id, e.units) for e in events if isinstance(e, LeaseCancelRequested)] == [(request.request_id, 1)]
    assert [(e.worker_id, e.cancelled) for e in events if isinstance(e, WorkerStopped)] == [(first.id, True)]
    await provisioner.leases(provisioner.granted(request, 2))
    assert (await terminate(provisioner, second, tmp_path)).json()["state"] == "stopped"
    assert [e.units for e in await provisioner.published(LeaseReleaseRequested)] == [1]
    await provisioner.plan()
    assert await provisioner.states() == {"stopped": 2, "requested": 3}
    assert await failures(provisioner) == 0
    assert (await terminate(provisioner, second, tmp_path)).json()["type"] == "urn:slipway:problem:worker-gone"


async def test_terminating_idle_and_busy_workers(provisioner: Provisioner, tmp_path: Path) -> None:
    """An idle worker stops at its next request, a busy one after its task. Neither is a failure or evidence about its
    launch config."""
    idle, busy = await running(provisioner, 2)
    await send_report(provisioner, busy, "claimed", at=at(0), task_id="t", source="q")
    for who in (idle, busy):
        assert (await terminate(provisioner, who[0], tmp_path)).json()["state"] == "stopping"
    assert await send_report(provisioner, idle, "heartbeat") == {
        "terminate": True,
        "reason": "terminated by admin: drill",
        "has_task": False,
    }
    assert (await send_report(provisioner, idle, "stopped", at=at(0)))["terminate"]
    await provisioner.set_clock(119)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == []
    await send_report(provisioner, busy, "idle", at=at(119))
    events = await provisioner.events()
    assert [event.outcome for event in events if isinstance(event, WorkerStopping)] == [None, None]
    await provisioner.set_clock(121)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == ["i-0002"]
    assert (await failures(provisioner), await provisioner.published(WorkerStopping)) == (0, [])


async def test_terminating_a_stopping_worker(provisioner: Provisioner, tmp_path: Path) -> None:
    """It changes nothing and publishes no event: the first reason stays."""
    (worker,) = await provisioner.starting()
    assert (await terminate(provisioner, worker, tmp_path)).status_code == 200
    before = await provisioner.worker()
    await provisioner.events()
    again = await terminate(provisioner, worker, tmp_path)
    assert (again.status_code, again.json()["state"]) == (200, "stopping")
    assert (await provisioner.worker(), await provisioner.events()) == (before, [])


# Pausing a pool; launch stops


async def test_pausing_a_pool(provisioner: Provisioner, tmp_path: Path) -> None:
    """Waiting intents are cancelled, workers stay, and nothing launches until it is resumed or the pause expires."""
    await running(provisioner)
    await provisioner.demand(report(3, at=1))
    await provisioner.plan()
    assert await provisioner.states() == {"running": 1, "requested": 2}
    async with administrator(provisioner, tmp_path, ["pools:write"]) as client:
        paused = await client.post("/pools/linux/pause", json={"reason": "drill", "until": at(60)})
        assert (paused.status_code, paused.json()["paused"]) == (200, True)
        await provisioner.plan()
        assert await provisioner.states() == {"running": 1, "stopped": 2}
        assert await provisioner.last_reason() == "the pool is paused"
        pool = await read(provisioner, "/pools/linux")
        assert (pool["paused"], pool["paused_reason"], pool["paused_by"]) == (True, "drill", "admin")
        assert (await client.post("/pools/linux/resume", json={"reason": "over"})).status_code == 200
        await provisioner.plan()
        assert await provisioner.states() == {"running": 1, "stopped": 2, "requested": 2}
        await client.post("/pools/linux/pause", json={"reason": "again", "until": at(60)})
    await provisioner.set_clock(60)
    await provisioner.expire()
    events = [event for event in await provisioner.events() if isinstance(event, PoolPaused | PoolResumed)]
    assert [(type(e), e.paused, e.reason, e.by) for e in events] == [
        (PoolPaused, True, "drill", "admin"),
        (PoolResumed, False, "over", "admin"),
        (PoolPaused, True, "again", "admin"),
        (PoolResumed, False, "the pause expired", "provisioner"),
    ]
    assert [event.revision for event in events] == [2, 3, 4, 5]
    assert events[0].until == after(60)  # type: ignore[union-attr]
    pool = await read(provisioner, "/pools/linux")
    assert (pool["paused"], pool["paused_reason"], pool["paused_until"]) == (False, "", None)


async def test_launch_stops(provisioner: Provisioner, tmp_path: Path) -> None:
    """The list shows the stops in force."""
    await provisioner.declare()
    async with administrator(provisioner, tmp_path) as client:
        for scope, scope_id, until in (("all", "", at(10)), ("pool", "linux", None)):
            body = {"scope": scope, "scope_id": scope_id, "reason": "drill", "until": until}
            assert (await client.post("/stop-launching", json=body)).status_code == 200
    both = (await read(provisioner, "/launch-stops"))["items"]
    assert [(launch_stop["scope"], launch_stop["scope_id"], launch_stop["by"]) for launch_stop in both] == [
        ("all", "", "admin"),
        ("pool", "linux", "admin"),
    ]
    await provisioner.set_clock(10)
    (left,) = (await read(provisioner, "/launch-stops"))["items"]
    assert left == both[1]
    assert (left["reason"], left["until"]) == ("drill", None)


@pytest.mark.parametrize("flags", ["00", "01"])
async def test_a_report_continues_the_trace_of_its_request(
    provisioner: Provisioner, tmp_path: Path, flags: str
) -> None:
    """With its flags; a header that is none is left out."""
    await provisioner.declare()
    given = f"00-{'a' * 32}-{'b' * 16}-{flags}"
    for traceparent, stored in ((given, given), (given.replace("a", "0"), ""), ("é" + given, ""), (given.upper(), "")):
        body = {"pending": 1, "observed_at": after(0).isoformat(), "source": "q"}
        async with administrator(provisioner, tmp_path, ["demand:write:linux"]) as client:
            headers = [(b"traceparent", traceparent.encode())]
            assert (await client.put("/pools/linux/demand", json=body, headers=headers)).json() == {"stored": True}
        row = await provisioner.database.fetchrow("SELECT traceparent FROM demand")
        assert row is not None
        assert row["traceparent"] == stored
        await provisioner.database.execute("DELETE FROM demand")
