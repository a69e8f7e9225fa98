"""Machines of the provisioner: boots, idle and unresponsive workers, their reports, and the instance reaper."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx2
import pytest

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved
from slipway_api.events.lease import LeaseReleaseRequested
from slipway_api.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerLaunched,
    WorkerLost,
    WorkerStopped,
    WorkerStopping,
)
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.port import OutcomeUnknown
from tests.support.cloud import ReplyLost
from tests.support.provisioner import Provisioner, administrator, after, report
from tests.support.running import failures, running


async def test_boot_timeout(provisioner: Provisioner) -> None:
    """The worker fails its boot stage, is terminated and confirmed gone; its unit is released and it is replaced."""
    (worker,) = await provisioner.starting()
    await provisioner.set_clock(901)
    (launched,) = await provisioner.published(WorkerLaunched)
    await provisioner.expire()
    (stopping,) = await provisioner.published(WorkerStopping)
    assert stopping.outcome == Outcome(Stage.BOOT, Result.FAILED, Scope.IMAGE, "linux-1", "boot_timeout")
    for event in (launched, stopping):
        assert (event.instance_id, event.console) == ("i-0001", f"/var/log/{worker.batch_id}/i-0001")
    assert await failures(provisioner) == {"boot": 1}
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == ["i-0001"]
    await provisioner.reap()
    events = await provisioner.events()
    assert [type(event) for event in events] == [LeaseReleaseRequested, WorkerStopped]
    assert (await provisioner.worker()).reason == "did not register in time"
    answer = await provisioner.register("i-0001", worker.batch_id)
    assert (answer.status_code, answer.json()["type"]) == (410, "urn:slipway:problem:worker-gone")


CLAIM_FAILED: Final = Outcome(Stage.CLAIM, Result.FAILED, Scope.IMAGE, "linux-1", "never_claimed")


@pytest.mark.parametrize(
    ("pending_at", "outcome"),
    [(0, CLAIM_FAILED), (9, Outcome(Stage.CLAIM, Result.FAILED, Scope.NOTHING, "", "never_claimed"))],
)
async def test_idle_despite_demand(provisioner: Provisioner, pending_at: float, outcome: Outcome) -> None:
    """A worker that stays idle while tasks are pending is replaced; this is evidence only if they were pending
    throughout."""
    await running(provisioner)
    if pending_at:
        await provisioner.demand(report(0, 1, at=1))
    await provisioner.demand(report(1, 1, at=pending_at or 1, valid_for_seconds=900))
    await provisioner.set_clock(300)
    await provisioner.expire()
    assert await provisioner.published(WorkerStopping) == []
    await provisioner.set_clock(310)
    await provisioner.expire()
    (stopping,) = await provisioner.published(WorkerStopping)
    assert (stopping.reason, stopping.outcome) == ("idle while tasks wait", outcome)
    await provisioner.plan()
    assert await provisioner.states() == {"stopping": 1, "requested": 2}


async def test_idle_without_demand(provisioner: Provisioner) -> None:
    """A worker is not given up without pending tasks, and one that has worked is no failed start."""
    ((_, client),) = await running(provisioner)
    await provisioner.demand(report(0, 1, at=1, valid_for_seconds=900))
    await client.post("/claimed", json={"task_id": "t", "source": "q", "at": after(2).isoformat()})
    await client.post("/idle", json={"at": after(3).isoformat()})
    await provisioner.set_clock(400)
    await provisioner.expire()
    assert await provisioner.published(WorkerStopping) == []
    await provisioner.demand(report(5, 0, at=10, valid_for_seconds=900))
    await provisioner.expire()
    (stopping,) = await provisioner.published(WorkerStopping)
    assert stopping.outcome is None


async def test_unresponsive(provisioner: Provisioner) -> None:
    """A worker without contact is stopped as unresponsive; a heartbeat counts as contact."""
    (_, alive), (_, _) = await running(provisioner, 2)
    await provisioner.demand(report(0, 2, at=1, valid_for_seconds=5000))
    await provisioner.set_clock(600)
    assert (await alive.post("/heartbeat")).json() == {"terminate": False, "reason": "", "has_task": False}
    await provisioner.set_clock(901)
    await provisioner.expire()
    assert [event.reason for event in await provisioner.published(WorkerStopping)] == ["unresponsive"]


async def test_stopping_an_idle_worker(provisioner: Provisioner) -> None:
    """A surplus idle worker learns with its next request that it must stop, and is terminated after the grace
    period."""
    pairs = await running(provisioner, 2)
    await provisioner.demand(report(0, at=1))
    await provisioner.plan()
    assert await provisioner.published(WorkerStopping) == []
    await provisioner.set_clock(121)
    await provisioner.plan()
    assert len(await provisioner.published(WorkerStopping)) == 2
    answer = (await pairs[0][1].get("/should-terminate")).json()
    assert (answer["terminate"], answer["reason"]) == (True, "more workers than wanted")
    assert (await pairs[0][1].post("/stopped", json={"at": after(121).isoformat()})).status_code == 200
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == []
    await provisioner.set_clock(242)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == ["i-0002"]


async def claimed_while_stopping(provisioner: Provisioner) -> httpx2.AsyncClient:
    """An idle worker that is asked to stop at 121 s, and claims a task at this moment."""
    ((_, client),) = await running(provisioner)
    await provisioner.demand(report(0, at=1))
    await provisioner.set_clock(121)
    await provisioner.plan()
    answer = await client.post("/claimed", json={"task_id": "t", "source": "q", "at": after(121).isoformat()})
    assert answer.json() == {"terminate": True, "reason": "more workers than wanted", "counted": True}
    await provisioner.set_clock(1000)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == []
    return client


async def test_a_task_claimed_at_the_moment_of_a_stop_is_finished(provisioner: Provisioner) -> None:
    """The grace period of a worker that was asked to stop as idle begins after the task that it claimed meanwhile."""
    client = await claimed_while_stopping(provisioner)
    await client.post("/idle", json={"at": after(1000).isoformat()})
    await provisioner.set_clock(1119)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == []
    await provisioner.set_clock(1121)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == ["i-0001"]


async def test_a_worker_that_finishes_a_task_and_becomes_unresponsive(provisioner: Provisioner) -> None:
    """It has the grace period from then on, as any other one without contact."""
    await claimed_while_stopping(provisioner)
    await provisioner.set_clock(1022)
    await provisioner.expire()
    assert (await provisioner.worker()).reason == "unresponsive"
    await provisioner.set_clock(1143)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == ["i-0001"]


async def test_a_worker_that_finishes_a_task_and_is_terminated(provisioner: Provisioner, tmp_path: Path) -> None:
    """A person's command gives it the grace period, once."""
    await claimed_while_stopping(provisioner)
    worker = await provisioner.worker()
    async with administrator(provisioner, tmp_path) as client:
        for at in (1000, 1100):
            await provisioner.set_clock(at)
            answer = await client.post(f"/workers/{worker.id}/terminate", json={"reason": "drill"})
            assert (answer.status_code, answer.json()["reason"]) == (200, "terminated by admin: drill")
    await provisioner.set_clock(1121)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == ["i-0001"]


async def test_a_retried_task(provisioner: Provisioner) -> None:
    """It is a claim of its own, as is an equal id of another source; a late repeat of the first report is none."""
    ((_, client),) = await running(provisioner)

    async def send_report(path: str, at: float, **task: str) -> None:
        assert (await client.post(path, json={"at": after(at).isoformat()} | task)).status_code == 200

    async def is_idle() -> bool:
        return (await provisioner.worker()).idle_since is not None

    await provisioner.set_clock(600)  # the machine's times are clamped, and still distinguish repeats from new tasks
    for source, at in (("q", 1), ("q", 3), ("other", 5)):
        await send_report("/claimed", at, task_id="t", source=source)
        await send_report("/claimed", at, task_id="t", source=source)
        assert not await is_idle()
        await send_report("/idle", at + 1)
        assert await is_idle()
    await provisioner.set_clock(610)
    await send_report("/claimed", 1, task_id="t", source="q")
    assert await is_idle()
    assert await provisioner.database.fetchval("SELECT count(*) FROM claim") == 3


async def test_a_failing_account_does_not_block_others(
    provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If more instances than fit into a round cannot be terminated, the next round begins with the others."""
    await provisioner.starting(60)
    await provisioner.database.execute("UPDATE worker SET state = 'stopping', stopping_at = slipway_clock()")
    terminate, dead = provisioner.cloud.terminate, [f"i-{n:04d}" for n in range(1, 51)]

    async def end(account: Account, instance_ids: Sequence[str]) -> None:
        await terminate(account, [id_ for id_ in instance_ids if id_ not in dead])
        if not {*dead}.isdisjoint(instance_ids):
            raise KeyError("url") if "i-0001" in instance_ids else OutcomeUnknown("no reply")

    monkeypatch.setattr(provisioner.cloud, "terminate", end)
    await provisioner.terminate_instances()
    await provisioner.set_clock(61)
    await provisioner.terminate_instances()
    assert len(provisioner.cloud.terminated) == 10


async def test_a_task_that_ended_since_the_report_is_not_replaced(provisioner: Provisioner) -> None:
    """A task that ended since the report causes no launch, however late the next report is."""
    ((_, client),) = await running(provisioner)
    await provisioner.demand(report(0, 1, at=1))
    await client.post("/claimed", json={"task_id": "t", "source": "q", "at": after(0).isoformat()})
    await provisioner.set_clock(5)
    await client.post("/stopped", json={"at": after(5).isoformat()})
    await provisioner.plan()
    assert await provisioner.states() == {"stopped": 1}
    await provisioner.demand(report(1, 0, at=6))
    await provisioner.plan()
    assert await provisioner.states() == {"stopped": 1, "requested": 1}


async def test_the_reaper_terminates_orphans(provisioner: Provisioner) -> None:
    """Orphans are terminated once the batch is known and the instance is old enough."""
    provisioner.cloud.script.append(3)
    await provisioner.starting(2)
    await provisioner.reap()
    assert provisioner.cloud.terminated == []
    await provisioner.set_clock(61)
    await provisioner.reap()
    assert provisioner.cloud.terminated == ["i-0003"]
    assert await provisioner.states() == {"starting": 2}


async def test_the_reaper_leaves_batches_of_unknown_outcome(provisioner: Provisioner) -> None:
    """Instances of a batch with an unknown outcome are no orphans."""
    provisioner.cloud.script.append(ReplyLost)
    await provisioner.admitted()
    await provisioner.launch()
    await provisioner.set_clock(61)
    await provisioner.reap()
    assert provisioner.cloud.terminated == []


async def test_the_reaper_finds_missing_instances(provisioner: Provisioner) -> None:
    """A missing worker is found in one pass; its unit is released, its task counts as gone, and it is replaced."""
    pairs = await running(provisioner, 6)
    await pairs[0][1].post("/claimed", json={"task_id": "t", "source": "q", "at": after(0).isoformat()})
    del provisioner.cloud.live["i-0001"]
    await provisioner.set_clock(61)
    await provisioner.reap()
    assert await provisioner.states() == {"running": 5, "stopped": 1}
    assert [event.reason for event in await provisioner.published(WorkerLost)] == ["instance is gone"]
    assert await provisioner.database.fetchval("SELECT count(*) FROM claim WHERE ended_at IS NULL") == 0


@pytest.mark.parametrize("hidden", [2, 6])
async def test_an_implausible_listing_marks_nothing_lost(provisioner: Provisioner, hidden: int) -> None:
    """An alert is raised, and instances that the provider still has by id stay."""
    await running(provisioner, 6)
    provisioner.cloud.hidden = {f"i-000{n}" for n in range(1, hidden + 1)}
    del provisioner.cloud.live["i-0001"]
    await provisioner.set_clock(61)
    await provisioner.reap()
    events = await provisioner.events()
    (alert,) = [event for event in events if isinstance(event, AlertRaised)]
    assert alert.kind == "implausible-listing"
    assert await provisioner.states() == {"running": 5, "stopped": 1}


async def test_an_implausible_listing_raises_one_alert(provisioner: Provisioner) -> None:
    """A new reason raises it again, and the first plausible listing resolves it once."""
    await running(provisioner, 6)
    everybody = {f"i-000{n}" for n in range(1, 7)}
    story: list[tuple[set[str], list[type[Alert]]]] = [
        (set(), []),
        (everybody, [AlertRaised]),
        (everybody, []),
        ({"i-0001", "i-0002"}, [AlertRaised]),
        (set(), [AlertResolved]),
        (set(), []),
    ]
    published: list[Alert] = []
    for round_, (hidden, expected) in enumerate(story, 1):
        provisioner.cloud.hidden = hidden
        await provisioner.set_clock(61 * round_)
        await provisioner.reap()
        alerts = await provisioner.published(Alert)
        assert [type(alert) for alert in alerts] == expected, round_
        published += alerts
    assert {(alert.kind, alert.dedup_key) for alert in published} == {
        ("implausible-listing", "provisioner/implausible-listing/sim-a")
    }


async def test_credentials_of_another_account(provisioner: Provisioner) -> None:
    """With credentials of another account nothing is terminated and no worker is lost."""
    provisioner.cloud.script.append(3)
    await provisioner.starting(2)
    provisioner.cloud.reported_identity = "somebody else"
    del provisioner.cloud.live["i-0001"]
    await provisioner.set_clock(61)
    await provisioner.reap()
    assert (await provisioner.states(), provisioner.cloud.terminated) == ({"starting": 2}, [])
    assert len(await provisioner.published(AlertRaised)) == 1
