"""Revisions that drain: their workers, deadlines, alerts, and the commands by name."""

from pathlib import Path
from typing import Any

import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.launch_config import LaunchConfigArchived, LaunchConfigPaused
from slipway_api.events.lease import LeaseCancelRequested, LeaseReleaseRequested, LeaseRequested
from slipway_api.events.worker import WorkerStopping
from slipway_provisioner.store import configs
from tests.support.provisioner import Provisioner, administrator, after, declared, report, revision_id
from tests.support.roll_outs import (
    DRAINS,
    NEW,
    OLD,
    claim,
    demanded,
    launches,
    listed,
    proves,
    replaced,
    running,
    states,
    with_image,
)


async def end_workers(provisioner: Provisioner, config_id: str = OLD) -> None:
    await provisioner.database.execute(
        "UPDATE worker SET state = 'stopped', ended_at = slipway_clock() WHERE launch_config_id = $1", config_id
    )


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
