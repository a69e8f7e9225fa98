"""Roll-outs of launch configs on a real database: proof, fallback, drain, its end, and what is kept for how long."""

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.events.launch_config import (
    LaunchConfigArchived,
    LaunchConfigDraining,
    LaunchConfigPaused,
    LaunchConfigUpdated,
)
from slipway_common.events.lease import LeaseCancelRequested, LeaseReleaseRequested, LeaseRequested
from slipway_common.events.scopes import REVISION_KEPT_SECONDS, image_key
from slipway_common.events.topics import LAUNCH_CONFIG_LIFECYCLE
from slipway_common.events.weight import SharedWindow, StageHealth, WeightChanged
from slipway_common.events.worker import WorkerStopping
from slipway_common.observability.telemetry import LOOP_FAILURES
from slipway_provisioner.domain.workers import Worker, claimed
from slipway_provisioner.store import configs, decisions, pools, roll_outs, workers
from slipway_provisioner.store.pools import CONFIGS, SHARED
from tests.support.provisioner import (
    Provisioner,
    administrator,
    after,
    declared,
    report,
    revision_id,
    weight,
)

OLD: Final = revision_id()
NEW: Final = revision_id(image="linux-2")
DAY: Final = 86_400.0
DRAINS: Final = "SELECT drain_terminate, drain_until FROM launch_config WHERE id = $1"


def with_image(image: str, *names: str, **changes: Any) -> dict[str, Any]:
    body = declared(*names, **changes)
    for config in body["worker_pools"][0]["launch_configs"]:
        config["image"] = image
    return body


async def running(provisioner: Provisioner, tasks: int) -> list[Worker]:
    """Idle workers of the old revision, as many as there are tasks."""
    await provisioner.admitted(tasks)
    await provisioner.launch()
    for worker in await provisioner.workers():
        assert (await provisioner.register(worker.instance_id or "", worker.batch_id)).is_success
    return await provisioner.workers()


async def claim(provisioner: Provisioner, some: list[Worker]) -> None:
    async with provisioner.database.acquire() as db, db.transaction():
        locked = await workers.lock(db, [worker.id for worker in some])
        await workers.save(db, [claimed(worker, "task", "q", await pools.now(db)) for worker in locked])


async def replaced(provisioner: Provisioner, **request: Any) -> None:
    """Declare another image, on the terms of the API."""
    terms = {"terminate": request.get("strategy") == "now"} | request
    await provisioner.declare(with_image("linux-2"), **terms)


def record(config_id: str, succeeded: int, **changes: Any) -> WeightChanged:
    """Weight record of a revision with this many successful starts."""
    stage = StageHealth(probability=0.95, successes=0, failures=0, window=64, failures_folded=0, succeeded=succeeded)
    return weight(config_id, stages=dict.fromkeys(("launch", "boot", "claim"), stage), **changes)


async def proves(provisioner: Provisioner, config_id: str = NEW, starts: int = 5, *, revision: int = 9) -> None:
    await provisioner.weights(record(config_id, starts), revision=revision)
    await provisioner.roll_out()


async def states(provisioner: Provisioner) -> dict[str, str]:
    rows = await provisioner.database.fetch("SELECT id, state FROM launch_config")
    return {row["id"]: row["state"] for row in rows}


async def launches(provisioner: Provisioner) -> dict[str, int]:
    rows = await provisioner.database.fetch("SELECT launch_config_id FROM worker WHERE state <> 'stopped'")
    return dict(Counter(row["launch_config_id"] for row in rows))


async def demanded(provisioner: Provisioner, pending: int, at: float) -> dict[str, int]:
    await provisioner.demand(report(pending, at=at))
    await provisioner.plan()
    return await launches(provisioner)


async def end_workers(provisioner: Provisioner, config_id: str = OLD) -> None:
    await provisioner.database.execute(
        "UPDATE worker SET state = 'stopped', ended_at = slipway_clock() WHERE launch_config_id = $1", config_id
    )


async def listed(provisioner: Provisioner, query: str = "") -> dict[str, dict[str, Any]]:
    async with provisioner.client() as client:
        return {row["id"]: row for row in (await client.get(f"/launch-configs{query}")).json()["items"]}


# Proof and fallback


async def test_the_old_revision_launches_what_the_new_one_does_not(provisioner: Provisioner) -> None:
    """Until five starts of the new one have succeeded; then the old one drains, for the reason that events give."""
    await provisioner.declare()
    await provisioner.trust()
    await replaced(provisioner)
    assert await states(provisioner) == {OLD: "active", NEW: "active"}
    assert await demanded(provisioner, 10, 0) == {NEW: 4, OLD: 6}
    assert await demanded(provisioner, 4, 1) == {NEW: 4}
    (decision,) = await decisions.recent(provisioner.database, "linux", 1)
    assert decision["details"]["configs"][OLD]["reason"] == "nothing is needed"
    await proves(provisioner, starts=4)
    assert await states(provisioner) == {OLD: "active", NEW: "active"}
    await proves(provisioner, starts=5, revision=10)
    events = [event for event in await provisioner.events() if isinstance(event, LaunchConfigDraining)]
    assert len(events) == 1
    (draining,) = events
    assert (draining.launch_config_id, draining.state, draining.current) == (OLD, "draining", False)
    assert (draining.reason, draining.by, draining.terminate) == (f"replaced by {NEW}", "provisioner", False)
    await provisioner.roll_out()
    assert await states(provisioner) == {OLD: "archived", NEW: "active"}


async def test_the_reason_names_the_revision_that_launches_first(provisioner: Provisioner) -> None:
    """A decision says why the fallback launches nothing."""
    await provisioner.declare()
    await replaced(provisioner)
    await provisioner.trust()
    assert await demanded(provisioner, 6, 0) == {NEW: 6}
    (decision,) = await decisions.recent(provisioner.database, "linux", 1)
    assert decision["details"]["configs"][OLD]["reason"] == f"the current revision {NEW} launches first"


async def test_a_tripped_revision_leaves_all_to_the_old_one(provisioner: Provisioner) -> None:
    """It is not proven by starts that succeeded before."""
    await provisioner.declare()
    await provisioner.trust()
    await replaced(provisioner)
    await provisioner.weights(record(NEW, 50, state="tripped", reason="tripped: 5 boots failed"), revision=3)
    assert await demanded(provisioner, 7, 0) == {OLD: 7}
    await provisioner.roll_out()
    assert await states(provisioner) == {OLD: "active", NEW: "active"}


async def test_a_rolling_replacement_goes_by_steps(provisioner: Provisioner) -> None:
    """A tenth of the launches first, a half at last; proven by twenty starts."""
    await provisioner.declare()
    await replaced(provisioner, strategy="rolling")
    await provisioner.trust()
    got = await demanded(provisioner, 40, 0)
    assert got[NEW] == pytest.approx(4, abs=2)
    assert got[OLD] == 40 - got[NEW]
    await proves(provisioner, starts=12)
    assert await states(provisioner) == {OLD: "active", NEW: "active"}
    rows = await listed(provisioner)
    assert (rows[NEW]["share"], rows[OLD]["share"], rows[OLD]["replaced_by"]) == (0.5, 0.5, "rolling")
    assert (rows[NEW]["succeeded_starts"], rows[NEW]["needed_starts"], rows[NEW]["proven"]) == (12, 20, False)
    await proves(provisioner, starts=20, revision=10)
    assert (await states(provisioner))[OLD] == "draining"
    assert (await listed(provisioner))[NEW]["proven"] is True


async def test_a_revision_without_fallback_is_proven_for_later(provisioner: Provisioner) -> None:
    """Of two old revisions the proven one stays as the fallback of a third."""
    await provisioner.declare()
    await proves(provisioner, OLD)
    await replaced(provisioner)
    await provisioner.declare(with_image("linux-3"))
    third = revision_id(image="linux-3")
    assert await states(provisioner) == {OLD: "active", NEW: "draining", third: "active"}
    await provisioner.roll_out()
    await provisioner.declare()
    assert await states(provisioner) == {OLD: "active", NEW: "archived", third: "draining"}


async def test_a_revision_that_tripped_proves_itself_again(provisioner: Provisioner) -> None:
    """The working revision stays as its fallback until it is healthy: it was proven long ago."""
    await provisioner.declare()
    await proves(provisioner, OLD)
    await replaced(provisioner, strategy="now")
    await proves(provisioner)
    await provisioner.weights(record(OLD, 5, state="tripped", reason="tripped: 5 boots failed"), revision=10)
    await provisioner.declare()
    await provisioner.roll_out()
    assert await states(provisioner) == {OLD: "active", NEW: "active"}
    await provisioner.weights(record(OLD, 6), revision=11)
    await provisioner.roll_out()
    assert await states(provisioner) == {OLD: "active", NEW: "archived"}


async def test_a_small_pool_proves_by_what_it_can_have(provisioner: Provisioner) -> None:
    """A pool of two workers needs two starts."""
    await provisioner.declare(declared(max_capacity=2))
    await provisioner.declare(with_image("linux-2", max_capacity=2))
    await proves(provisioner, starts=2)
    assert (await states(provisioner))[OLD] == "archived"


async def test_a_roll_out_that_fails_stops_no_other_one(provisioner: Provisioner) -> None:
    """It is counted, and goes on as soon as it can."""
    names = ("zone-a", "zone-b")
    await provisioner.declare(declared(*names))
    await provisioner.declare(with_image("linux-2", *names))
    await provisioner.weights(record(NEW, 5), record(revision_id("zone-b", image="linux-2"), 5))
    damage = "UPDATE weight SET record = record - 'stages' WHERE launch_config_id = $1"
    await provisioner.database.execute(damage, NEW)
    failures = LOOP_FAILURES.labels("roll-out")._value
    before = failures.get()
    with contextlib.suppress(KeyError):  # of the damaged record, as in the loop of a service
        await provisioner.roll_out()
    assert {id_ for id_, state in (await states(provisioner)).items() if state == "archived"} == {revision_id("zone-b")}
    assert failures.get() > before
    await proves(provisioner, revision=2)
    assert (await states(provisioner))[OLD] == "archived"


async def test_a_deletion_that_fails_stops_no_other_one(provisioner: Provisioner) -> None:
    """Revisions of other names go in time."""
    names = ("zone-a", "zone-b")
    await provisioner.declare(declared(*names))
    await provisioner.declare(with_image("linux-2", *names), strategy="now")
    await provisioner.roll_out()
    await provisioner.set_clock(REVISION_KEPT_SECONDS + 1)
    await provisioner.database.execute("CREATE TABLE kept (id text REFERENCES launch_config)")
    try:
        await provisioner.database.execute("INSERT INTO kept VALUES ($1)", OLD)
        await provisioner.roll_out()
        assert OLD in await states(provisioner)
        assert revision_id("zone-b") not in await states(provisioner)
    finally:
        await provisioner.database.execute("DROP TABLE kept")
    await provisioner.roll_out()
    assert OLD not in await states(provisioner)


# Drains


@pytest.mark.parametrize("leave_out", [False, True])
async def test_a_leaked_secret_leaves_also_with_what_drains_already(provisioner: Provisioner, leave_out: bool) -> None:
    """A replacement at once is for all revisions of a name; one that drains keeps its earlier deadline."""
    await running(provisioner, 2)
    await claim(provisioner, await provisioner.workers())
    await replaced(provisioner, strategy="now", terminate=False, drain_seconds=100.0)
    drains = (
        "SELECT drain_terminate, extract(epoch FROM drain_until - drain_from)::int FROM launch_config WHERE id = $1"
    )
    assert tuple(await provisioner.database.fetchrow(drains, OLD)) == (False, 100)
    await provisioner.set_clock(10)
    await provisioner.declare(with_image("linux-3"), drain_seconds=20.0, terminate=False)
    assert tuple(await provisioner.database.fetchrow(drains, OLD)) == (False, 100)
    body = with_image("linux-4", "zone-b") if leave_out else with_image("linux-4")
    await provisioner.declare(body, strategy="now", drain_seconds=30.0, terminate=True)
    assert tuple(await provisioner.database.fetchrow(drains, OLD)) == (True, 40)
    await provisioner.roll_out()
    assert await provisioner.states() == {"running": 2}
    await provisioner.set_clock(41)
    await provisioner.roll_out()
    assert await provisioner.states() == {"stopping": 2}


async def test_a_replacement_may_be_hastened(provisioner: Provisioner, tmp_path: Path) -> None:
    """The same declaration at once: the fallback launches nothing more. Repeated, it changes nothing."""
    await provisioner.declare()
    await replaced(provisioner)
    drained = {
        "kind": "launch config",
        "id": "zone-a",
        "result": "updated",
        "detail": f"drains at once: {OLD}, within 1800 s",
    }
    async with administrator(provisioner, tmp_path) as client:
        body = (await client.get("/pools/linux")).json()["declared"]
        for query, items in (
            ("natural", []),
            ("now&drain_seconds=1800&dry_run=true", [drained]),
            ("now&drain_seconds=1800", [drained]),
            ("now", []),
        ):
            answer = await client.put(f"/pools/linux?replace={query}", json=body)
            assert (answer.status_code, answer.json()["items"]) == (200, items), query
    assert await states(provisioner) == {OLD: "draining", NEW: "active"}
    assert await provisioner.database.fetchval("SELECT drain_terminate FROM launch_config WHERE id = $1", OLD)


async def test_a_draining_revision_launches_nothing(provisioner: Provisioner, tmp_path: Path) -> None:
    """The start statement refuses it; its intents are cancelled, and admitted ones release their units at once."""
    (grant,) = await provisioner.admitted(3)
    await provisioner.demand(report(6, at=1))
    await provisioner.plan()
    assert await provisioner.states() == {"requested": 6}
    await replaced(provisioner, strategy="now")
    await provisioner.launch()
    assert provisioner.cloud.calls == []
    async with provisioner.database.acquire() as db, db.transaction():
        assert await configs.startable(db, OLD) is None
        assert (await configs.startable(db, NEW))["id"] == NEW
    await provisioner.plan()
    assert OLD not in await launches(provisioner)
    events = await provisioner.events()
    (released,) = [event for event in events if isinstance(event, LeaseReleaseRequested)]
    assert (released.lease_id, released.units, released.result) == (grant.lease_id, 3, "cancelled")
    assert [event.units for event in events if isinstance(event, LeaseCancelRequested)] == [3]
    await provisioner.roll_out()
    assert await states(provisioner) == {OLD: "archived", NEW: "active"}


async def test_idle_workers_leave_a_quarter_at_a_time(provisioner: Provisioner) -> None:
    """Although they are wanted, and the next ones once their replacements have registered."""
    await running(provisioner, 12)
    await replaced(provisioner)
    await provisioner.trust()
    await proves(provisioner)
    await provisioner.demand(report(12, at=1))
    await provisioner.plan()
    assert await provisioner.states() == {"running": 9, "stopping": 3, "requested": 3}
    reasons = {event.reason for event in await provisioner.published(WorkerStopping)}
    assert reasons == {f"{OLD} drains"}
    await provisioner.database.execute("UPDATE worker SET state = 'stopped' WHERE state = 'stopping'")
    await provisioner.demand(report(12, at=2))
    await provisioner.plan()
    assert await provisioner.states() == {"running": 9, "requested": 3, "stopped": 3}, "replacements come first"
    await provisioner.database.execute("UPDATE worker SET state = 'running' WHERE state = 'requested'")
    await provisioner.demand(report(12, at=3))
    await provisioner.plan()
    assert (await provisioner.states())["stopping"] == 3


async def test_now_ends_a_revision_that_drains_already(provisioner: Provisioner) -> None:
    """A secret turns out to be leaked after the replacement: its machines must go by the new terms."""
    drained = await running(provisioner, 2)
    await replaced(provisioner, strategy="now", terminate=False, drain_seconds=3600.0)
    assert await provisioner.database.fetchrow(DRAINS, OLD) == (False, after(3600))
    (change,) = await provisioner.declare(with_image("linux-2"), strategy="now", drain_seconds=60.0)
    assert (change.id, change.result, change.detail) == ("zone-a", "updated", f"drains at once: {OLD}, within 60 s")
    assert await provisioner.database.fetchrow(DRAINS, OLD) == (True, after(60))
    await provisioner.set_clock(1)
    for seconds in (60.0, 5000.0, None):
        assert not await provisioner.declare(with_image("linux-2"), strategy="now", drain_seconds=seconds)
    assert await provisioner.database.fetchrow(DRAINS, OLD) == (True, after(60))
    await provisioner.roll_out()
    assert {w.state for w in await provisioner.workers() if w.id in {known.id for known in drained}} == {"stopping"}


@pytest.mark.parametrize("image", ["linux-2", "linux-3"])
async def test_a_second_now_may_shorten_the_drain(provisioner: Provisioner, image: str) -> None:
    """Workers with a task stop at the earlier deadline."""
    await claim(provisioner, await running(provisioner, 2))
    await replaced(provisioner, strategy="now", drain_seconds=3600.0)
    await provisioner.set_clock(10)
    assert await provisioner.declare(with_image(image), strategy="now", drain_seconds=60.0)
    assert await provisioner.database.fetchrow(DRAINS, OLD) == (True, after(70))
    await provisioner.set_clock(70)
    await provisioner.roll_out()
    assert await provisioner.states() == {"stopping": 2}


async def test_now_stops_idle_and_booting_workers_at_once(provisioner: Provisioner) -> None:
    """A worker with a task may finish it until the deadline."""
    all_workers = await running(provisioner, 4)
    await claim(provisioner, all_workers[:1])
    await provisioner.demand(report(6, at=1))
    await provisioner.plan()
    (request,) = (await provisioner.published(LeaseRequested))[-1:]
    await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()
    assert await provisioner.states() == {"running": 4, "starting": 2}
    await replaced(provisioner, strategy="now", terminate=True, drain_seconds=60.0)
    await provisioner.roll_out()
    assert await provisioner.states() == {"running": 1, "stopping": 5}
    await provisioner.set_clock(60)
    await provisioner.roll_out()
    assert await provisioner.states() == {"stopping": 6}
    last = (await provisioner.published(WorkerStopping))[-1]
    assert last.reason == f"drain deadline of {OLD}"


async def test_the_deadline_ends_a_task_claimed_at_the_moment_of_a_stop(provisioner: Provisioner) -> None:
    """An idle worker of a revision replaced at once may finish the task that it claimed when it was asked to stop,
    until the deadline."""
    (worker,) = await running(provisioner, 1)
    await replaced(provisioner, strategy="now", terminate=True, drain_seconds=600.0)
    await provisioner.roll_out()
    await claim(provisioner, [worker])
    await provisioner.set_clock(599)
    await provisioner.roll_out()
    await provisioner.terminate_instances()
    assert (provisioner.cloud.terminated, (await provisioner.worker()).reason) == ([], f"{OLD} drains")
    await provisioner.set_clock(600)
    await provisioner.roll_out()
    assert (await provisioner.worker()).reason == f"drain deadline of {OLD}"
    await provisioner.set_clock(721)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == ["i-0001"]


async def test_the_deadline_terminates_only_if_asked(provisioner: Provisioner) -> None:
    """Otherwise workers finish their tasks, however late."""
    all_workers = await running(provisioner, 2)
    await claim(provisioner, all_workers)
    await replaced(provisioner, drain_seconds=100.0)
    await proves(provisioner)
    await provisioner.set_clock(5000)
    await provisioner.roll_out()
    assert await provisioner.states() == {"running": 2}
    await replaced_back_and_forth(provisioner)
    await provisioner.set_clock(5101)
    await provisioner.roll_out()
    assert await provisioner.states() == {"stopping": 2}


async def replaced_back_and_forth(provisioner: Provisioner) -> None:
    """Reactivate the old revision, and replace it once more, with a deadline that terminates."""
    await provisioner.declare()
    await replaced(provisioner, drain_seconds=100.0, terminate=True)
    assert await states(provisioner) == {OLD: "draining", NEW: "active"}


async def test_the_default_drain_time_is_the_longest_task(provisioner: Provisioner) -> None:
    """Of the last day, at least an hour; a pool may declare another."""

    async def drain_seconds() -> float:
        row = await provisioner.database.fetchrow(
            "SELECT drain_from, drain_until FROM launch_config WHERE id = $1", OLD
        )
        seconds: float = (row["drain_until"] - row["drain_from"]).total_seconds()
        return seconds

    await running(provisioner, 1)
    await replaced(provisioner, strategy="now")
    assert await drain_seconds() == 3600
    for ended_at, seconds in ((None, 7000), (after(6500), 6500)):
        await provisioner.set_clock(0)
        await provisioner.declare()
        await provisioner.database.execute("DELETE FROM claim")
        await provisioner.database.execute(
            "INSERT INTO claim (worker_id, source, task_id, claimed_at, reported_at, pool_id, started_at, ended_at)"
            " SELECT id, 'q', 'task', $1::timestamptz::text, $1, pool_id, $1, $2 FROM worker",
            after(0),
            ended_at,
        )
        await provisioner.set_clock(7000)
        await replaced(provisioner, strategy="now")
        assert await drain_seconds() == seconds
    deadlines = {"drain_seconds": 300.0}
    await provisioner.declare(declared(deadlines=deadlines))
    await provisioner.declare(with_image("linux-2", deadlines=deadlines), strategy="now")
    assert await drain_seconds() == 300


async def test_a_long_drain_raises_an_alert_once(provisioner: Provisioner) -> None:
    """At 80 % of its time; archiving resolves it, as does the same body declared again."""
    all_workers = await running(provisioner, 3)
    await claim(provisioner, all_workers)
    await replaced(provisioner, strategy="now", drain_seconds=100.0)
    await provisioner.set_clock(79)
    await provisioner.roll_out()
    assert await provisioner.published(AlertRaised) == []
    for seconds in (80, 200):
        await provisioner.set_clock(seconds)
        await provisioner.roll_out()
    (alert,) = await provisioner.published(AlertRaised)
    assert (alert.kind, alert.subject_kind, alert.subject_id) == ("drain-overdue", "config", OLD)
    assert alert.summary == f"{OLD} drains slowly: 3 workers are left"
    await provisioner.declare()
    await provisioner.roll_out()
    (resolved,) = await provisioner.published(AlertResolved)
    assert resolved.dedup_key == alert.dedup_key
    await replaced(provisioner, strategy="now", drain_seconds=100.0)
    await provisioner.set_clock(290)
    await provisioner.roll_out()
    await end_workers(provisioner)
    await provisioner.roll_out()
    kinds = [type(event) for event in await provisioner.events() if isinstance(event, AlertRaised | AlertResolved)]
    assert kinds == [AlertRaised, AlertResolved]


async def test_a_revision_is_archived_without_live_workers_only(provisioner: Provisioner) -> None:
    """Not while one of them is stopping, since its machine may still exist."""
    await running(provisioner, 2)
    await replaced(provisioner, strategy="now")
    await provisioner.database.execute("UPDATE worker SET state = 'stopping'")
    await provisioner.roll_out()
    assert (await states(provisioner))[OLD] == "draining"
    await end_workers(provisioner)
    await provisioner.roll_out()
    (archived,) = await provisioner.published(LaunchConfigArchived)
    assert (archived.launch_config_id, archived.state) == (OLD, "archived")


# What workers are told


async def test_a_worker_that_asks_is_told_about_its_revision(provisioner: Provisioner) -> None:
    """A worker with a task leaves after it; one without waits until the plan stops it."""
    (worker, *_) = await running(provisioner, 1)
    token = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()["token"]
    async with provisioner.client(token=token) as client:

        async def answer(kind: str = "should-terminate", **body: Any) -> dict[str, Any]:
            path = f"/workers/{worker.id}/{kind}"
            got = await (client.post(path, json=body) if body else client.get(path))
            assert got.is_success, got.text
            told: dict[str, Any] = got.json()
            return told

        old, new = OLD.partition("@")[2], NEW.partition("@")[2]
        standing: dict[str, Any] = {"config": "zone-a", "revision": old, "current": old, "state": "active"}
        assert await answer() == {"terminate": False, "reason": "", **standing, "deadline": None}
        await replaced(provisioner)
        assert await answer() == {"terminate": False, "reason": "", **standing, "current": new, "deadline": None}
        await proves(provisioner)
        told = await answer()
        assert (told["terminate"], told["state"], told["deadline"]) == (False, "draining", "2026-01-01T13:00:00Z")
        at = after(0).isoformat()
        assert await answer("claimed", task_id="t", source="q", at=at) == {
            "terminate": True,
            "reason": f"{OLD} drains",
            "counted": True,
        }
        assert (await answer())["terminate"] is True
        for _ in range(2):  # repeated since the first answer may be lost
            assert (await answer("idle", at=after(1).isoformat()))["terminate"] is True
        assert (await answer())["terminate"] is False


# Commands by name


async def test_a_pause_reaches_all_revisions_of_a_name(provisioner: Provisioner, tmp_path: Path) -> None:
    """A revision's id is refused, since all of its name would be paused; a new revision of a paused name is paused."""
    await provisioner.declare()
    await provisioner.trust()
    await replaced(provisioner)
    await provisioner.events()
    async with administrator(provisioner, tmp_path) as client:
        for verb in ("pause", "resume"):
            refused = await client.post(f"/launch-configs/{OLD}/{verb}", json={"reason": "maintenance"})
            assert (refused.status_code, f"slipway lc {verb} zone-a" in refused.text) == (422, True)
        assert not await provisioner.events()
        paused = await client.post("/launch-configs/zone-a/pause", json={"reason": "maintenance"})
        assert (paused.status_code, paused.json()["id"]) == (200, "zone-a")
        events = [event for event in await provisioner.events() if isinstance(event, LaunchConfigPaused)]
        assert {(event.launch_config_id, event.state) for event in events} == {(OLD, "paused"), (NEW, "paused")}
        assert await demanded(provisioner, 9, 0) == {}
        await provisioner.declare(with_image("linux-3"))
        third = revision_id(image="linux-3")
        await provisioner.plan()
        assert await launches(provisioner) == {}
        rows = await listed(provisioner)
        assert (rows[third]["state"], rows[third]["state_reason"]) == ("paused", "maintenance")
        assert (await client.post("/launch-configs/zone-a/resume", json={"reason": "done"})).is_success
        assert (await client.post("/launch-configs/zone-x/pause", json={"reason": "r"})).status_code == 404
    await provisioner.trust()
    assert await demanded(provisioner, 9, 1) == {third: 9}


async def test_lists_show_revisions(provisioner: Provisioner) -> None:
    """Archived ones only if asked; a name means its current revision."""
    await provisioner.declare(declared(deadlines={"drain_seconds": 900.0}))
    await provisioner.trust()
    await replaced(provisioner, strategy="now")
    row = (await listed(provisioner))[OLD]
    assert (row["name"], row["revision"], row["current"], row["state"]) == ("zone-a", OLD[-6:], False, "draining")
    assert (row["live"], row["replaced_by"], row["drain_terminate"]) == (0, "now", True)
    await provisioner.roll_out()
    assert await listed(provisioner) == {NEW: (await listed(provisioner))[NEW]}
    assert set(await listed(provisioner, "?all=true&pool=linux")) == {OLD, NEW}
    async with provisioner.client() as client:
        for given, id_ in (("zone-a", NEW), (OLD, OLD), (NEW, NEW)):
            assert (await client.get(f"/launch-configs/{given}")).json()["id"] == id_


async def test_a_maximum_counts_workers_of_all_revisions(provisioner: Provisioner) -> None:
    """Also of the draining ones, until they are gone."""
    await running(provisioner, 4)
    body = with_image("linux-2")
    body["worker_pools"][0]["launch_configs"][0]["max_capacity"] = 6
    await provisioner.declare(body, strategy="now")
    await provisioner.trust()
    assert await demanded(provisioner, 20, 1) == {OLD: 4, NEW: 2}
    await end_workers(provisioner)
    assert await demanded(provisioner, 20, 2) == {NEW: 6}


# Bad images


async def bad_image(provisioner: Provisioner, image: str, *, revision: int) -> None:
    bad = SharedWindow(
        kind="image",
        id=f"simulated/{image}",
        stage="boot",
        version=revision,
        window=64,
        unconfirmed=10,
        state="tripped",
    )
    await provisioner.weights(weight(NEW, shared=(bad,)), revision=revision)
    await provisioner.plan()


async def is_frozen(provisioner: Provisioner) -> bool:
    frozen: bool = await provisioner.database.fetchval("SELECT frozen FROM worker_pool")
    return frozen


async def test_a_bad_new_image_does_not_freeze_what_still_launches(provisioner: Provisioner) -> None:
    """It trips, and the old revision launches on; without that one the pool freezes."""
    terms: dict[str, Any] = {"on_bad_image": "freeze", "freeze_after": 3}
    await provisioner.declare(declared(**terms))
    await provisioner.trust()
    await provisioner.declare(with_image("linux-2", **terms))
    await provisioner.demand(report(7))
    await bad_image(provisioner, "linux-2", revision=5)
    assert not await is_frozen(provisioner)
    assert await launches(provisioner) == {OLD: 7}
    await provisioner.database.execute("UPDATE launch_config SET state = 'draining' WHERE id = $1", OLD)
    await bad_image(provisioner, "linux-2", revision=6)
    assert not await is_frozen(provisioner), "the old revision returns once the new one has tripped"
    await provisioner.database.execute("UPDATE launch_config SET replaced_by = 'now' WHERE id = $1", OLD)
    await bad_image(provisioner, "linux-2", revision=7)
    assert await is_frozen(provisioner)


def went_bad(by: str = "image", stage: str = "boot") -> WeightChanged:
    """Record of the new revision, which has tripped after nine successful starts."""
    return record(NEW, 9, state="tripped", reason="tripped: 5 boots failed", tripped_by=by, tripped_stage=stage)


async def test_an_image_that_goes_bad_after_its_roll_out(provisioner: Provisioner) -> None:
    """While the old revision drains, it takes the demand again, until the new one has proven itself anew."""
    await running(provisioner, 6)
    await provisioner.trust()
    await replaced(provisioner, drain_seconds=500.0)
    await proves(provisioner)
    assert (await states(provisioner))[OLD] == "draining"
    await provisioner.set_clock(100)
    await provisioner.events()
    await provisioner.weights(went_bad(), revision=10)
    assert await demanded(provisioner, 9, 1) == {OLD: 6}
    await provisioner.roll_out()
    assert await states(provisioner) == {OLD: "active", NEW: "active"}
    (returned,) = await provisioner.published(LaunchConfigUpdated)
    assert (returned.launch_config_id, returned.state, returned.drain_until) == (OLD, "active", None)
    await provisioner.plan()
    assert await launches(provisioner) == {OLD: 9}
    rows = await listed(provisioner)
    assert (rows[NEW]["proven"], rows[NEW]["succeeded_starts"], rows[NEW]["needed_starts"]) == (False, 0, 5)
    await proves(provisioner, starts=13, revision=11)
    assert (await listed(provisioner))[NEW]["succeeded_starts"] == 4
    assert (await states(provisioner))[OLD] == "active"
    await proves(provisioner, starts=14, revision=12)
    assert (await states(provisioner))[OLD] == "draining"
    assert await provisioner.database.fetchrow(DRAINS, OLD) == (False, after(600))


@pytest.mark.parametrize("strategy", ["natural", "now"])
async def test_what_does_not_return(provisioner: Provisioner, strategy: str) -> None:
    """An image with a leaked secret, and any image where only capacity is missing."""
    await running(provisioner, 2)
    await claim(provisioner, await provisioner.workers())
    await replaced(provisioner, strategy=strategy)
    await proves(provisioner)
    await provisioner.weights(went_bad() if strategy == "now" else went_bad("", "launch"), revision=10)
    await provisioner.roll_out()
    assert (await states(provisioner))[OLD] == "draining"


async def test_an_image_that_only_drains_freezes_nothing(provisioner: Provisioner) -> None:
    """Nobody launches it any more."""
    terms: dict[str, Any] = {"on_bad_image": "freeze", "freeze_after": 3}
    await running(provisioner, 1)
    await provisioner.declare(declared(**terms))
    await provisioner.declare(with_image("linux-2", **terms), strategy="now")
    await bad_image(provisioner, "linux-1", revision=5)
    assert not await is_frozen(provisioner)


# What is kept


async def test_an_archived_revision_is_kept_for_a_month(provisioner: Provisioner) -> None:
    """With its weight, counts and shares; then they go with a tombstone, and the name once nothing is left of it."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    await provisioner.trust()
    await provisioner.database.execute(workers.COUNT_OUTCOMES, [OLD], ["boot"], [True])
    await provisioner.declare(with_image("linux-2", "zone-b"))
    await provisioner.roll_out()
    assert (await states(provisioner))[OLD] == "archived"
    for table in ("weight", "launch_config_outcomes"):
        kept = await provisioner.database.fetchval(
            f"SELECT count(DISTINCT launch_config_id) FROM {table} WHERE launch_config_id = $1", OLD
        )
        assert kept == 1
    await provisioner.set_clock(REVISION_KEPT_SECONDS - 1)
    await provisioner.roll_out()
    assert OLD in await states(provisioner)
    await provisioner.set_clock(REVISION_KEPT_SECONDS + 1)
    await provisioner.roll_out()
    assert OLD not in await states(provisioner)
    for table in ("weight", "launch_config_outcomes"):
        kept = await provisioner.database.fetchval(
            f"SELECT count(DISTINCT launch_config_id) FROM {table} WHERE launch_config_id = $1", OLD
        )
        assert kept == 0
    await provisioner.prune()
    keys = {row["key"] for row in await provisioner.database.fetch("SELECT key FROM shared_window")}
    assert image_key("simulated/linux-1").text in keys, "the fallback of zone-b uses it"
    names = [row["name"] for row in await provisioner.database.fetch("SELECT name FROM launch_config_name")]
    assert names == ["zone-b"]
    tombstones = await provisioner.database.fetch("SELECT topic, key FROM outbox WHERE value IS NULL")
    assert [tuple(row) for row in tombstones] == [(LAUNCH_CONFIG_LIFECYCLE.name, OLD)]
    await proves(provisioner, revision_id("zone-b", image="linux-2"))
    await provisioner.set_clock(2 * REVISION_KEPT_SECONDS + 2)
    await provisioner.roll_out()
    await provisioner.prune()
    keys = {row["key"] for row in await provisioner.database.fetch("SELECT key FROM shared_window")}
    assert image_key("simulated/linux-1").text not in keys


async def test_archived_revisions_cost_decisions_nothing(provisioner: Provisioner) -> None:
    """With a hundred per name, a decision reads those that are not archived, and the few of the last minute."""
    names = [f"zone-{number}" for number in range(10)]
    await provisioner.declare(declared(*names))
    await provisioner.database.execute(
        "INSERT INTO launch_config (id, name, digest, pool_id, account_id, region, zone, instance_type, image_revision,"
        " settings, profile, boot_evidence, claim_evidence, on_bad_image, freeze_after, state, archived_at)"
        " SELECT name || '@old' || n, name, 'old' || n, pool_id, account_id, region, zone, instance_type,"
        " image_revision, settings, profile, boot_evidence, claim_evidence, on_bad_image, freeze_after, 'archived',"
        " slipway_clock() - interval '1 hour' FROM launch_config, generate_series(1, 100) AS n"
    )
    await provisioner.database.execute("ANALYZE")
    for statement, given in ((CONFIGS, ["linux"]), (SHARED, ["linux", after(0)]), (roll_outs.DUE, [])):
        (row,) = await provisioner.database.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *given)
        shown = row["QUERY PLAN"]
        (root,) = msgspec.json.decode(shown) if isinstance(shown, str) else shown
        read = [rows_of(node) for node in nodes(root["Plan"]) if node.get("Relation Name") == "launch_config"]
        assert read, statement
        assert max(read) <= 20, statement


def nodes(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [node, *(below for child in node.get("Plans", []) for below in nodes(child))]


def rows_of(node: dict[str, Any]) -> float:
    """Rows that a scan has looked at in one run."""
    read: float = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return read
