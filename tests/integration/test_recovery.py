"""Recovery of the provisioner on a real database: what runs without a row, and what a person decides about it."""

from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.launch_config import LaunchConfigUpdated
from slipway_api.events.worker import WorkerRegistered, WorkerStopping
from slipway_common.base.ids import new_id
from slipway_common.messaging.incarnation import Incarnation
from slipway_provisioner.apply import recovery
from slipway_provisioner.domain.cloud import Instance, InstanceState
from slipway_provisioner.domain.reaping import UNKNOWN_BATCH
from slipway_provisioner.store import configs, instances, launch_stops
from tests.support.cloud import START
from tests.support.provisioner import Provisioner, administrator, after, in_transaction, report, revision_id

# Tables of the state that a backup has; the others are drawn once.
LOST: Final = ("worker", "launch_batch", "lease", "lease_request", "claim", "decision")


async def restored(provisioner: Provisioner, reason: str = "restored") -> None:
    """Renew the incarnation of the database, as the relay does when the log is ahead."""
    await in_transaction(
        provisioner, lambda db: recovery.stop_until_confirmed(db, Incarnation("new", reason, ("old",), 2**50, None))
    )


async def forgotten(provisioner: Provisioner) -> None:
    """Delete the rows of every launch, as if the database had been restored from before them."""
    for table in LOST:
        await provisioner.database.execute(f"DELETE FROM {table}")


async def shown(provisioner: Provisioner) -> dict[str, Any]:
    async with provisioner.client() as client:
        answer: dict[str, Any] = (await client.get("/recovery")).json()
    return answer


async def confirmed(client: httpx2.AsyncClient, **actions: str) -> dict[str, Any]:
    """Confirm with actions by instance; underscores stand for dashes."""
    instances = [
        {"account_id": "sim-a", "instance_id": name.replace("_", "-"), "action": action}
        for name, action in actions.items()
    ]
    answer = await client.post("/recovery/confirm", json={"instances": instances})
    assert answer.status_code == 200, answer.text
    done: dict[str, Any] = answer.json()
    return done


def orphan(name: str, batch_id: str = "", config: str | None = None) -> Instance:
    """A running instance that nothing here has launched."""
    return Instance(
        id=name,
        batch_id=batch_id,
        launch_config_id=revision_id() if config is None else config,
        created_at=START,
        state=InstanceState.RUNNING,
    )


# The instance reaper


async def test_instances_of_unknown_batches_are_kept(provisioner: Provisioner) -> None:
    """None is terminated without a person's decision; one alert names them while they run."""
    await provisioner.starting(5)
    await forgotten(provisioner)
    await provisioner.events()
    for round_ in range(1, 4):
        await provisioner.set_clock(100 * round_)
        await provisioner.reap()
    assert provisioner.cloud.terminated == []
    (alert,) = await provisioner.published(AlertRaised)
    assert (alert.kind, alert.subject_id, len(alert.evidence)) == ("orphans-kept", "sim-a", 5)
    found = await shown(provisioner)
    assert [row["instance_id"] for row in found["orphans"]] == sorted(provisioner.cloud.live)
    assert {row["reason"] for row in found["orphans"]} == {UNKNOWN_BATCH}
    provisioner.cloud.live.clear()
    await provisioner.set_clock(400)
    await provisioner.reap()
    assert len(await provisioner.published(AlertResolved)) == 1
    assert (await shown(provisioner))["orphans"] == []


async def test_what_was_launched_after_the_restored_state_is_shown(provisioner: Provisioner) -> None:
    """No pass over the deadlines is recorded before the confirmation: the newest is older than what was lost."""
    await provisioner.starting(1)
    await provisioner.expire()
    await restored(provisioner)
    provisioner.cloud.live["i-9999"] = msgspec.structs.replace(orphan("i-9999"), created_at=after(1000))
    await provisioner.set_clock(2000)
    await provisioner.reap()
    found = await shown(provisioner)
    assert [(row["instance_id"], row["reason"]) for row in found["orphans"]] == [("i-9999", UNKNOWN_BATCH)]
    assert found["not_listed"] == []


async def test_a_batch_outlives_its_instances(provisioner: Provisioner) -> None:
    """The row of a batch is kept while a worker of it or an orphan instance is known, however old it is."""
    await provisioner.starting(1)
    await provisioner.set_clock(15 * 86400)
    await provisioner.prune()
    assert await provisioner.database.fetchval("SELECT count(*) FROM launch_batch") == 1
    await provisioner.database.execute("DELETE FROM worker")
    await provisioner.set_clock(16 * 86400)
    await provisioner.prune()
    assert await provisioner.database.fetchval("SELECT count(*) FROM launch_batch") == 0


async def test_orphan_instances_are_ended_while_launching_is_stopped(provisioner: Provisioner) -> None:
    """They cost money for nothing."""
    (worker,) = await provisioner.starting(1)
    provisioner.cloud.live["i-9999"] = orphan("i-9999", worker.batch_id or "")
    await in_transaction(
        provisioner, lambda db: launch_stops.put(db, "all", "", reason="a drill", by="test", until=None)
    )
    await provisioner.set_clock(100)
    await provisioner.reap()
    assert provisioner.cloud.terminated == ["i-9999"]


# Until a restore is confirmed


async def test_nothing_starts_or_ends_before_the_confirmation(provisioner: Provisioner, tmp_path: Path) -> None:
    """No launch, no stop of idle, unresponsive or booting workers, no termination, whatever the deadlines say; another
    launch stop and its end change nothing."""
    await provisioner.starting(4)
    one, two, *_ = await provisioner.workers()
    for worker in (one, two):
        await provisioner.register(worker.instance_id or "", worker.batch_id)
    provisioner.cloud.live["i-9999"] = orphan("i-9999", one.batch_id or "")
    await restored(provisioner)
    await provisioner.events()
    async with administrator(provisioner, tmp_path) as client:
        for path in ("/stop-launching", "/start-launching"):
            body = {"scope": "all", "scope_id": "", "reason": "r"}
            assert (await client.post(path, json=body)).status_code == 200
        for round_ in range(1, 5):
            await provisioner.set_clock(2000 * round_)
            await provisioner.demand(report(0 if round_ % 2 else 10, at=2000 * round_))
            await provisioner.plan()
            await provisioner.expire()
            await provisioner.terminate_instances()
            await provisioner.roll_out()
            await provisioner.reap()
        assert provisioner.cloud.terminated == []
        assert await provisioner.published(WorkerStopping) == []
        assert await provisioner.states() == {"running": 2, "starting": 2}
        assert "launching is stopped: restored" in await provisioner.last_reason()
        calls = len(provisioner.cloud.calls)
        done = await confirmed(client)
        assert (done["restore"], done["open"]) == (True, 1)
        await provisioner.trust()
        await provisioner.set_clock(9000)
        await provisioner.demand(report(10, at=9000))
        await provisioner.plan()
        assert "needed" in await provisioner.last_reason()
        assert len(provisioner.cloud.calls) == calls
        await provisioner.set_clock(9100)
        await provisioner.reap()
        assert provisioner.cloud.terminated == []  # it was asked about, and has no decision yet
        assert (await confirmed(client, i_9999="terminate"))["open"] == 0
        await provisioner.set_clock(9200)
        await provisioner.reap()
        assert provisioner.cloud.terminated == ["i-9999"]


async def test_nothing_starts_before_the_relay_has_compared(provisioner: Provisioner) -> None:
    """On a server that has just started, a decision, a start and a termination wait for the comparison."""
    await provisioner.admitted(2)
    await provisioner.demand(report(9, at=1))
    await provisioner.database.execute("UPDATE incarnation SET server = 'another'")
    assert not await provisioner.plan_step()
    await provisioner.launch()
    await provisioner.set_clock(100)
    await provisioner.reap()
    assert provisioner.cloud.calls == []
    assert await provisioner.states() == {"requested": 2}
    await provisioner.set_clock(1)
    await provisioner.database.execute("UPDATE incarnation SET server = slipway_server()")
    await provisioner.launch()
    assert len(provisioner.cloud.calls) == 1


async def test_agents_of_unknown_workers_try_again(provisioner: Provisioner) -> None:
    """Before the confirmation an agent is not refused for lack of a row; afterwards it is."""
    (worker,) = await provisioner.starting(1)
    answer = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()
    batch_id = worker.batch_id
    await forgotten(provisioner)

    async def statuses() -> tuple[int, int]:
        async with provisioner.client(token=answer["token"]) as client:
            beat = await client.post(f"/workers/{answer['worker_id']}/heartbeat")
        return beat.status_code, (await provisioner.register("i-0001", batch_id)).status_code

    assert await statuses() == (404, 404)
    await restored(provisioner)
    assert await statuses() == (503, 503)


async def test_every_state_is_published_above_the_lost_ones(provisioner: Provisioner) -> None:
    """Consumers that have seen later states of a launch config do not drop the restored one."""
    await provisioner.declare()
    await provisioner.events()
    await restored(provisioner)
    await provisioner.sweep()
    states = await provisioner.published(LaunchConfigUpdated)
    assert states
    assert all(state.revision > 2**50 for state in states)


# Decisions of a person


async def adopted(provisioner: Provisioner, tmp_path: Path, count: int = 2) -> dict[str, Any]:
    """Launch, lose the rows, restore and adopt everything."""
    await provisioner.starting(count)
    await forgotten(provisioner)
    await restored(provisioner)
    await provisioner.set_clock(100)
    await provisioner.reap()
    found = await shown(provisioner)
    assert {row["action"] for row in found["orphans"]} == {"adopt"}
    async with administrator(provisioner, tmp_path) as client:
        return await confirmed(client, **{row["instance_id"].replace("-", "_"): "adopt" for row in found["orphans"]})


async def test_adopted_instances_are_workers(provisioner: Provisioner, tmp_path: Path) -> None:
    """They count as serving, so that nothing is launched in their place, and no stage of a start ends by it."""
    done = await adopted(provisioner, tmp_path, 3)
    assert done == {"adopted": 3, "terminating": 0, "left": 0, "open": 0, "restore": True}
    workers = await provisioner.workers()
    assert {worker.state for worker in workers} == {"running"}
    assert {worker.instance_id for worker in workers} == set(provisioner.cloud.live)
    assert {worker.batch_id for worker in workers} == {i.batch_id for i in provisioner.cloud.live.values()}
    registered = await provisioner.published(WorkerRegistered)
    assert [event.outcome.stage for event in registered] == ["unknown"] * 3
    await provisioner.set_clock(111)
    await provisioner.demand(report(0, 3, at=110))
    await provisioner.plan()
    assert await provisioner.states() == {"running": 3}
    await provisioner.set_clock(300)
    await provisioner.reap()
    assert provisioner.cloud.terminated == []
    assert (await shown(provisioner))["orphans"] == []


async def test_an_adoption_cancels_the_intents_that_were_decided_without_it(
    provisioner: Provisioner, tmp_path: Path
) -> None:
    """Otherwise they would launch a second machine for each. The next decision requests only what is missing."""
    await provisioner.starting(3)
    await forgotten(provisioner)
    await provisioner.set_clock(100)
    await provisioner.demand(report(0, 4, at=100))
    await provisioner.plan()
    assert await provisioner.states() == {"requested": 4}
    await provisioner.reap()
    async with administrator(provisioner, tmp_path) as client:
        await confirmed(client, **{name.replace("-", "_"): "adopt" for name in provisioner.cloud.live})
    assert await provisioner.states() == {"stopped": 4, "running": 3}
    await provisioner.plan()
    assert await provisioner.states() == {"stopped": 4, "running": 3, "requested": 1}


async def test_an_adopted_agent_registers_again(provisioner: Provisioner, tmp_path: Path) -> None:
    """With the secret of its batch; its heartbeat then says that its claim is unknown, and it may report it."""
    await adopted(provisioner, tmp_path, 1)
    worker = await provisioner.worker()
    answer = await provisioner.register(worker.instance_id or "", worker.batch_id)
    assert (answer.status_code, answer.json()["worker_id"]) == (200, worker.id)
    async with provisioner.client(token=answer.json()["token"]) as agent:
        beat = (await agent.post(f"/workers/{worker.id}/heartbeat")).json()
        assert (beat["terminate"], beat["has_task"]) == (False, False)
        claim = {"task_id": "t", "source": "q", "at": after(100).isoformat()}
        assert (await agent.post(f"/workers/{worker.id}/claimed", json=claim)).status_code == 200
        assert (await agent.post(f"/workers/{worker.id}/heartbeat")).json()["has_task"] is True


async def test_instances_are_terminated_or_left_as_decided(provisioner: Provisioner, tmp_path: Path) -> None:
    """A decision holds over passes and failing calls; what is left alone stays, without an alert."""
    await provisioner.declare()
    for name in ("i-1", "i-2", "i-3"):
        provisioner.cloud.live[name] = orphan(name, new_id())
    await provisioner.set_clock(100)
    await provisioner.reap()
    await provisioner.events()
    async with administrator(provisioner, tmp_path) as client:
        done = await confirmed(client, i_1="terminate", i_2="leave")
        assert (done["terminating"], done["left"], done["open"], done["restore"]) == (1, 1, 1, False)
        provisioner.cloud.failing = {"i-1"}
        await provisioner.set_clock(200)
        await provisioner.reap()
        provisioner.cloud.failing = set()
        assert sorted(provisioner.cloud.live) == ["i-1", "i-2", "i-3"]
        await provisioner.set_clock(300)
        await provisioner.reap()
        assert sorted(provisioner.cloud.live) == ["i-2", "i-3"]
        await provisioner.set_clock(400)
        await provisioner.reap()
        found = await shown(provisioner)
        assert [(row["instance_id"], row["decision"]) for row in found["orphans"]] == [("i-2", "leave"), ("i-3", "")]
        assert await provisioner.published(AlertRaised) == []
        await confirmed(client, i_3="leave")
        assert [alert.kind for alert in await provisioner.published(AlertResolved)] == ["orphans-kept"]
        await provisioner.set_clock(500)
        await provisioner.reap()
        assert sorted(provisioner.cloud.live) == ["i-2", "i-3"]
        assert await provisioner.published(AlertRaised) == []


async def asked_about(provisioner: Provisioner) -> None:
    """An instance of a known batch that a pass has asked about, since a restore was not confirmed."""
    (worker,) = await provisioner.starting(1)
    provisioner.cloud.live["i-9999"] = orphan("i-9999", worker.batch_id or "")
    await restored(provisioner)
    await provisioner.set_clock(100)
    await provisioner.reap()
    await provisioner.events()


async def test_a_listing_that_lacks_an_instance_answers_no_question(provisioner: Provisioner, tmp_path: Path) -> None:
    """It stays for as long as the provider confirms by id that it exists, and so does what a person has decided."""
    await asked_about(provisioner)
    async with administrator(provisioner, tmp_path) as client:
        await confirmed(client)
        for second, hidden in ((200, {"i-9999"}), (300, set())):
            provisioner.cloud.hidden = hidden
            await provisioner.set_clock(second)
            await provisioner.reap()
        assert await provisioner.published(AlertRaised) == []
        assert [row["decision"] for row in (await shown(provisioner))["orphans"]] == [""]
        await confirmed(client, i_9999="leave")
        for second, hidden in ((400, {"i-9999"}), (500, set())):
            provisioner.cloud.hidden = hidden
            await provisioner.set_clock(second)
            await provisioner.reap()
    assert [row["decision"] for row in (await shown(provisioner))["orphans"]] == ["leave"]
    assert provisioner.cloud.terminated == []


async def test_an_instance_that_is_adopted_during_a_pass(
    provisioner: Provisioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that has read the workers before it was adopted does not end it."""
    await asked_about(provisioner)
    async with administrator(provisioner, tmp_path) as client:
        await confirmed(client)
        read, reads = instances.owners, count(1)

        async def and_adopted(*arguments: Any) -> Any:
            rows = await read(*arguments)
            if next(reads) == 2:  # after the listing
                await confirmed(client, i_9999="adopt")
            return rows

        monkeypatch.setattr(instances, "owners", and_adopted)
        await provisioner.set_clock(200)
        await provisioner.reap()
        monkeypatch.undo()
        await provisioner.set_clock(300)
        await provisioner.reap()
    assert provisioner.cloud.terminated == []
    assert (await shown(provisioner))["orphans"] == []


@pytest.mark.parametrize(
    ("instance", "why"),
    [
        (orphan("i-1"), "it has no tag of a launch batch"),
        (orphan("i-1", new_id(), "gone@123456"), "its launch config gone@123456 is unknown or archived"),
        (orphan("i-1", new_id(), ""), "it has no tag of a launch config"),
    ],
)
async def test_what_cannot_be_adopted_is_left(
    provisioner: Provisioner, tmp_path: Path, instance: Instance, why: str
) -> None:
    """It is proposed to be left, and a request to adopt it changes nothing."""
    await provisioner.declare()
    provisioner.cloud.live["i-1"] = instance
    await restored(provisioner)
    await provisioner.set_clock(100)
    await provisioner.reap()
    (row,) = (await shown(provisioner))["orphans"]
    assert (row["action"], row["why"]) == ("leave", why)
    async with administrator(provisioner, tmp_path) as client:
        body = {"instances": [{"account_id": "sim-a", "instance_id": "i-1", "action": "adopt"}]}
        answer = await client.post("/recovery/confirm", json=body)
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:slipway:problem:cannot-adopt")
    assert (await shown(provisioner))["restored"] == "restored"
    assert await provisioner.workers() == []


async def test_a_confirmation_waits_for_every_listing(provisioner: Provisioner, tmp_path: Path) -> None:
    """Machines of an account that was not listed would be launched a second time. A person may name the account, and
    nothing is launched in a retired one."""
    await provisioner.declare()
    await restored(provisioner)
    async with administrator(provisioner, tmp_path, scopes=("restores:write", "accounts:write")) as client:
        refused = await client.post("/recovery/confirm", json={"instances": []})
        assert refused.status_code == 409
        assert refused.json()["type"] == "urn:slipway:problem:not-listed"
        assert "has all machines of sim-a (not listed yet)" in refused.json()["detail"]
        assert (await shown(provisioner))["restored"] == "restored"
        answer = await client.post("/recovery/confirm", json={"instances": [], "unlisted": ["sim-a"]})
        assert (answer.status_code, answer.json()["restore"]) == (200, True)
        await restored(provisioner)
        await provisioner.database.execute("UPDATE account SET retired = true")
        assert (await client.post("/recovery/confirm", json={"instances": []})).status_code == 200
        assert (await shown(provisioner))["restored"] == ""


@pytest.mark.parametrize(("visibility", "settled"), [(None, 15), (300.0, 305)])
async def test_a_listing_counts_once_what_was_lost_has_settled(
    provisioner: Provisioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visibility: float | None, settled: int
) -> None:
    """A call of the lost time may create a machine until its deadline, which is listed after the visibility delay. A
    pass with the credential of the account counts if it began after both."""
    await provisioner.declare()
    provisioner.cloud.visibility = visibility
    await restored(provisioner)
    owners = instances.owners
    late = orphan("i-late", new_id())

    async def slowly(*arguments: Any) -> Any:
        await provisioner.set_clock(settled + 1)
        return await owners(*arguments)

    async with administrator(provisioner, tmp_path) as client:
        provisioner.cloud.live["i-1"] = orphan("i-1", new_id())
        await provisioner.set_clock(settled - 1)
        with monkeypatch.context() as patch:
            patch.setattr(instances, "owners", slowly)
            await provisioner.reap()
        provisioner.cloud.live["i-late"] = late
        await provisioner.set_clock(settled + 100)
        provisioner.cloud.reported_identity = "another"
        await provisioner.reap()
        awaited = [(each["account_id"], each["counts_from"]) for each in (await shown(provisioner))["not_listed"]]
        assert [(name, msgspec.convert(at, datetime)) for name, at in awaited] == [("sim-a", after(settled))]
        refused = await client.post("/recovery/confirm", json={"instances": []})
        assert refused.status_code == 409
        assert f"sim-a (a listing counts from {after(settled):%Y-%m-%d %H:%M:%S} UTC on)" in refused.json()["detail"]
        assert (await shown(provisioner))["restored"] == "restored"
        provisioner.cloud.reported_identity = "sim-a"
        await provisioner.set_clock(settled + 200)
        await provisioner.reap()
        found = await shown(provisioner)
        assert ([row["instance_id"] for row in found["orphans"]], found["not_listed"]) == (["i-1", "i-late"], [])
        assert (await confirmed(client, i_1="leave", i_late="leave"))["restore"] is True


async def test_differences(provisioner: Provisioner) -> None:
    """Instances without a row, rows without an instance, open calls, lost claims, and accounts not listed yet."""
    await provisioner.starting(2)
    await restored(provisioner)
    assert (await shown(provisioner))["not_listed"] == [{"account_id": "sim-a", "counts_from": None}]
    batch = (await provisioner.workers())[0].batch_id
    await provisioner.database.execute("UPDATE launch_batch SET state = 'calling', call_deadline = 'infinity'")
    del provisioner.cloud.live["i-0001"]
    await provisioner.set_clock(90)
    await provisioner.demand(report(0, 5, at=90, valid_for_seconds=60))
    await provisioner.set_clock(100)
    await provisioner.reap()
    found = await shown(provisioner)
    assert (found["unconfirmed"], found["restored"]) == ("restored", "restored")
    assert [row["instance_id"] for row in found["missing"]] == ["i-0001"]
    assert [row["batch_id"] for row in found["open_calls"]] == [batch]
    lost = {"pool_id": "linux", "source": "q", "claimed": 5, "known": 0}
    assert (found["lost_claims"], found["not_listed"]) == ([lost], [])


async def test_audit_of_a_restore(provisioner: Provisioner, tmp_path: Path) -> None:
    """It has who reported and who confirmed, and each orphan instance; the relay's own finding too, but not again what
    the relay does after a report."""
    await provisioner.starting(1)
    batch_id = (await provisioner.worker()).batch_id
    await forgotten(provisioner)
    provisioner.cloud.live["i-9998"] = orphan("i-9998", batch_id or "")
    await restored(provisioner, "the log is ahead")
    async with administrator(provisioner, tmp_path) as client:
        assert (await client.post("/restored", json={"reason": "a backup"})).status_code == 200
        await restored(provisioner, "restored, reported by admin: a backup")
        await provisioner.database.execute("UPDATE incarnation SET requested = NULL")
        await provisioner.set_clock(100)
        await provisioner.reap()
        await confirmed(client, i_0001="adopt", i_9998="leave")
        rows = (await client.get("/audit?limit=5")).json()["items"]
        of_database = (await client.get("/audit?kind=database")).json()["items"]
    reason = "restored, reported by admin: a backup"
    assert [(row["kind"], row["action"], row["by"], row["reason"], row["after"]) for row in reversed(rows)] == [
        ("database", "restored", "provisioner", "the log is ahead", None),
        ("database", "restored", "admin", "a backup", None),
        ("account", "adopt instances", "admin", "confirmed", {"instances": ["i-0001"]}),
        ("account", "leave instances", "admin", "confirmed", {"instances": ["i-9998"]}),
        ("database", "confirm", "admin", reason, {"unlisted": None}),
    ]
    assert [row["action"] for row in of_database] == ["confirm", "restored", "restored"]


async def test_restored_without_a_right(provisioner: Provisioner, tmp_path: Path) -> None:
    """A token without the scope can neither record a restore nor confirm one."""
    async with administrator(provisioner, tmp_path, scopes=("launching:stop",)) as client:
        for path, body in (("/restored", {"reason": "r"}), ("/recovery/confirm", {"instances": []})):
            assert (await client.post(path, json=body)).status_code == 403
    assert (await shown(provisioner))["unconfirmed"] == ""


async def test_a_person_says_that_the_database_was_restored(provisioner: Provisioner, tmp_path: Path) -> None:
    """Its effects begin at once, before the relay has renewed the incarnation; a confirmation ends them, after that."""
    await provisioner.declare()
    async with administrator(provisioner, tmp_path) as client:
        assert (await client.post("/restored", json={"reason": "a drill"})).status_code == 200
        assert (await shown(provisioner))["restored"] == "restored, reported by admin: a drill"
        async with provisioner.database.acquire() as db, db.transaction():
            assert await configs.startable(db, revision_id()) is None
        raised = [alert.kind for alert in await provisioner.published(AlertRaised)]
        assert raised == ["database-restored"]
        refused = await client.post("/recovery/confirm", json={"instances": []})
        assert refused.status_code == 503  # the relay has not begun the new incarnation
        assert "Kafka has to be reachable" in refused.json()["detail"]
        assert (await shown(provisioner))["compared"] is False
        await provisioner.database.execute("UPDATE incarnation SET requested = NULL")
        await provisioner.set_clock(100)
        await provisioner.reap()
        assert (await confirmed(client))["restore"] is True
        assert [alert.kind for alert in await provisioner.published(AlertResolved)] == ["database-restored"]
        assert (await shown(provisioner))["restored"] == ""
