"""Deadlines of workers across an outage of PostgreSQL or the provisioner, or a jump of the database's clock: only the
time in which a worker could have reported counts."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import msgspec
import pytest

from slipway_api.events.alert import START_SECONDS, Alert, AlertRaised, AlertResolved
from slipway_api.events.lease import LeaseConfirmed, LeaseRenewRequested, LeaseRequested
from slipway_api.events.pool import PoolUpdated
from slipway_api.events.worker import WorkerLaunched, WorkerRegistered, WorkerStopping
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.loops import expire
from slipway_provisioner.loops.watch import Watch
from slipway_provisioner.providers.port import OutcomeUnknown
from slipway_provisioner.store import deadlines
from tests.support.provisioner import Provisioner, administrator, after, in_transaction, provisioner_on, report

OUTAGE_SECONDS = 1200.0


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with provisioner_on(postgres) as provisioner:
        await provisioner.expire()
        yield provisioner


async def register(provisioner: Provisioner, worker: Worker) -> httpx2.AsyncClient:
    """Register the instance of a worker; returns a client with its token."""
    answer = (await provisioner.register(worker.instance_id or "", worker.batch_id)).json()
    client = provisioner.client(token=answer["token"])
    client.base_url = httpx2.URL(f"http://provisioner/workers/{worker.id}")
    return client


async def reasons(provisioner: Provisioner) -> list[str]:
    """Reasons of the workers that were asked to stop since the last call."""
    return [event.reason for event in await provisioner.published(WorkerStopping)]


async def test_an_outage_ends_no_worker(provisioner: Provisioner) -> None:
    """After 20 minutes without a pass neither a busy worker nor a booting one is overdue; both are after their time-out
    in uptime, the regular seconds between two passes included."""
    busy, _ = await provisioner.starting(2)
    client = await register(provisioner, busy)
    await client.post("/claimed", json={"task_id": "t", "source": "q", "at": after(0).isoformat()})
    await provisioner.events()
    await provisioner.jump_clock(OUTAGE_SECONDS)
    await provisioner.expire()
    assert await provisioner.states() == {"running": 1, "starting": 1}
    end = OUTAGE_SECONDS - expire.REGULAR_PASS_SECONDS + 900
    await provisioner.set_clock(end)
    await provisioner.expire()
    assert await reasons(provisioner) == []
    await provisioner.set_clock(end + 1)
    await provisioner.expire()
    assert sorted(await reasons(provisioner)) == ["did not register in time", "unresponsive"]


async def test_a_machine_that_registers_after_an_outage(provisioner: Provisioner) -> None:
    """A machine that booted during the outage registers once it can, and its image is charged with nothing."""
    (worker,) = await provisioner.starting()
    await provisioner.jump_clock(OUTAGE_SECONDS)
    await provisioner.expire()
    await register(provisioner, worker)
    assert [type(event) for event in await provisioner.events() if isinstance(event, WorkerRegistered)]
    assert await provisioner.database.fetchval("SELECT sum(failures) FROM launch_config_outcomes") == 0


async def test_a_jump_of_the_clock_between_a_pass_and_its_deadlines(provisioner: Provisioner) -> None:
    """Deadlines end at the newest pass: what follows it is not known to be uptime."""
    (worker,) = await provisioner.starting()
    await register(provisioner, worker)
    await provisioner.set_clock(10)
    await provisioner.jump_clock(3610)
    defaults = provisioner.settings.deadlines()
    assert await in_transaction(provisioner, lambda db: deadlines.unresponsive(db, defaults, ["sim-a"])) == {}
    assert await in_transaction(provisioner, lambda db: deadlines.unresponsive_accounts(db, defaults)) == []
    await provisioner.expire()
    assert await provisioner.states() == {"running": 1}


async def test_a_clock_that_is_set_back(provisioner: Provisioner) -> None:
    """Downtime of a future that has not come is forgotten: an unresponsive worker is found out in time, but for the
    seconds until the pass."""
    (worker,) = await provisioner.starting()
    await register(provisioner, worker)
    await provisioner.jump_clock(3600)
    await provisioner.expire()
    await provisioner.jump_clock(10)
    await provisioner.expire()
    await provisioner.set_clock(901 + 10 - expire.REGULAR_PASS_SECONDS)
    await provisioner.expire()
    assert await reasons(provisioner) == ["unresponsive"]


async def test_a_clock_that_is_set_back_after_an_outage(provisioner: Provisioner) -> None:
    """As by a failover to a server whose clock is behind: the downtime behind the clock still counts."""
    busy, _ = await provisioner.starting(2)
    await register(provisioner, busy)
    await provisioner.jump_clock(OUTAGE_SECONDS)
    await provisioner.expire()
    await provisioner.jump_clock(OUTAGE_SECONDS - 3)
    await provisioner.expire()
    assert await provisioner.states() == {"running": 1, "starting": 1}


async def test_leases_and_requests_after_a_clock_was_set_back(provisioner: Provisioner) -> None:
    """Commands of the future are sent again: a lease is renewed and a request repeated, as if they were due."""
    first, second = await provisioner.requested(2, "zone-a", "zone-b")
    grant = provisioner.granted(first, hold_until=after(7200))
    confirmed = LeaseConfirmed(
        lease_pool_id=grant.lease_pool_id, lease_id=grant.lease_id, fencing_token=1, expires_at=after(300)
    )
    await provisioner.leases(grant, confirmed)
    for seconds in (3600, 10):
        await provisioner.jump_clock(seconds)
        await provisioner.expire()
        await provisioner.resend_requests()
        events = await provisioner.events()
        assert [event.lease_id for event in events if isinstance(event, LeaseRenewRequested)] == [grant.lease_id]
        assert [e.request_id for e in events if isinstance(e, LeaseRequested)] == [second.request_id]


async def test_a_short_lease_after_a_clock_was_set_back(provisioner: Provisioner) -> None:
    """A renewal that was requested in the future is requested again before the lease is used."""
    (request,) = await provisioner.requested()
    await provisioner.leases(provisioner.granted(request, expires_at=after(16)))
    for seconds in (3600, 6):
        await provisioner.jump_clock(seconds)
        await provisioner.launch()
        assert len(await provisioner.published(LeaseRenewRequested)) == 1
    assert provisioner.cloud.calls == []


async def test_instances_after_a_clock_was_set_back(provisioner: Provisioner) -> None:
    """The reaper and the terminations that it confirms go on, and do not wait until the clock is where it was."""
    overdue, _ = await provisioner.starting(2)
    listed = provisioner.cloud.live
    orphan = msgspec.structs.replace(listed[overdue.instance_id or ""], id="i-orphan", created_at=after(-3600))
    await provisioner.set_clock(901)
    await provisioner.expire()
    provisioner.cloud.failing = set(listed)
    await provisioner.jump_clock(3600)
    await provisioner.terminate_instances()
    await provisioner.reap()
    assert provisioner.cloud.terminated == []
    provisioner.cloud.failing = set()
    await provisioner.jump_clock(902)
    await provisioner.terminate_instances()
    assert sorted(provisioner.cloud.terminated) == ["i-0001", "i-0002"]
    listed[orphan.id] = orphan
    await provisioner.reap()
    assert provisioner.cloud.terminated[2:] == ["i-orphan"]


async def test_sweeps_after_a_clock_was_set_back(provisioner: Provisioner) -> None:
    """Every pool is swept again, whenever the last sweep seems to have been."""
    await provisioner.declare()
    for seconds in (3600, 10):
        await provisioner.jump_clock(seconds)
        await provisioner.events()
        await provisioner.sweep()
        assert len(await provisioner.published(PoolUpdated)) == 1


async def test_slow_passes_suspend_no_deadline(provisioner: Provisioner) -> None:
    """With a pass every 20 s, each counts as 5 s of uptime."""
    await provisioner.starting()
    seconds = 0
    while await provisioner.states() == {"starting": 1} and seconds < 10_000:
        seconds += 20
        await provisioner.jump_clock(seconds)
        await provisioner.expire()
    assert seconds == 20 * (900 / 5 + 1)


async def test_an_idle_worker_has_to_be_seen_after_an_outage(provisioner: Provisioner) -> None:
    """It may have claimed a task meanwhile. One that polls and has claimed nothing is stopped as usual."""
    seen, _ = [await register(provisioner, worker) for worker in await provisioner.starting(2)]
    await provisioner.demand(report(0, at=1))
    await provisioner.set_clock(119)
    await provisioner.jump_clock(OUTAGE_SECONDS)
    await provisioner.expire()
    await provisioner.set_clock(OUTAGE_SECONDS + 60)
    await provisioner.sweep_now()
    await provisioner.plan()
    assert await reasons(provisioner) == []
    await seen.get("/should-terminate")
    await provisioner.sweep_now()
    await provisioner.plan()
    assert await reasons(provisioner) == ["more workers than wanted"]


async def test_an_idle_worker_is_given_up_by_uptime(provisioner: Provisioner) -> None:
    """A jump of the clock makes no worker idle for long, also where demand is valid for hours."""
    (worker,) = await provisioner.starting()
    client = await register(provisioner, worker)
    await provisioner.demand(report(1, 1, at=1, valid_for_seconds=80_000))
    await provisioner.set_clock(10)
    await provisioner.jump_clock(3610)
    await provisioner.expire()
    await client.get("/should-terminate")
    await provisioner.expire()
    assert await reasons(provisioner) == []
    await provisioner.set_clock(3610 + 300)
    await provisioner.expire()
    assert await reasons(provisioner) == ["idle while tasks wait"]


async def test_the_grace_period_of_a_stop_is_uptime(provisioner: Provisioner) -> None:
    """A busy worker that was asked to stop before an outage can still receive the request and finish its task."""
    (worker,) = await provisioner.starting()
    await register(provisioner, worker)
    await provisioner.set_clock(901)
    await provisioner.expire()
    assert await reasons(provisioner) == ["unresponsive"]
    await provisioner.jump_clock(901 + OUTAGE_SECONDS)
    await provisioner.expire()
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == []
    await provisioner.set_clock(901 + OUTAGE_SECONDS + 120)
    await provisioner.terminate_instances()
    assert provisioner.cloud.terminated == [worker.instance_id]


async def lose_contact(provisioner: Provisioner, count: int, registered: int) -> None:
    """Let `count` of so many registered workers lose contact, each second one more, until the first is overdue."""
    for worker in await provisioner.starting(registered):
        await register(provisioner, worker)
    ids = [worker.id for worker in await provisioner.workers()]
    for place, id_ in enumerate(ids):
        seconds = place if place < count else 890
        await provisioner.database.execute(
            "UPDATE worker SET last_seen_at = $2 WHERE id = $1::uuid", id_, after(seconds)
        )
    await provisioner.demand(report(0, registered, at=1, valid_for_seconds=80_000))
    await provisioner.events()
    await provisioner.set_clock(902)
    await provisioner.expire()


async def unresponsiveness_alerts(provisioner: Provisioner) -> list[type[Alert]]:
    return [type(alert) for alert in await provisioner.published(Alert) if alert.kind == "mass-unresponsiveness"]


@pytest.mark.parametrize(("count", "registered", "stopped"), [(11, 40, 0), (10, 11, 2), (11, 60, 2)])
async def test_workers_that_lose_contact_together(
    provisioner: Provisioner, count: int, registered: int, stopped: int
) -> None:
    """None is stopped if more than a fifth and more than ten have lost contact, although two are overdue so far."""
    await lose_contact(provisioner, count, registered)
    assert await provisioner.states() == {"running": registered - stopped} | ({"stopping": stopped} if stopped else {})
    assert await unresponsiveness_alerts(provisioner) == ([] if stopped else [AlertRaised])


async def test_mass_unresponsiveness_that_is_confirmed(provisioner: Provisioner, tmp_path: Path) -> None:
    """All overdue workers of the account are stopped; the alert is raised once, and ends."""
    await lose_contact(provisioner, 11, 40)
    await provisioner.set_clock(912)
    await provisioner.expire()
    assert await unresponsiveness_alerts(provisioner) == [AlertRaised]
    async with administrator(provisioner, tmp_path, ["accounts:write"]) as client:
        answer = await client.post("/accounts/sim-a/confirm-unresponsive", json={"reason": "host lost"})
        assert answer.json() == {"id": "sim-a", "stopped": 11}
    assert await reasons(provisioner) == ["unresponsive, confirmed by admin: host lost"] * 11
    await provisioner.expire()
    assert await unresponsiveness_alerts(provisioner) == [AlertResolved]
    assert await provisioner.states() == {"running": 29, "stopping": 11}


async def test_workers_that_are_in_contact_again(provisioner: Provisioner) -> None:
    await lose_contact(provisioner, 11, 40)
    await provisioner.events()
    await provisioner.database.execute("UPDATE worker SET last_seen_at = $1", after(902))
    await provisioner.set_clock(903)
    await provisioner.expire()
    assert await unresponsiveness_alerts(provisioner) == [AlertResolved]
    assert await provisioner.states() == {"running": 40}


async def test_a_bad_image_times_out_all_at_once(provisioner: Provisioner) -> None:
    """Boot time-outs have no limit: they are how a bad image is found."""
    await provisioner.starting(40)
    await provisioner.set_clock(901)
    await provisioner.expire()
    assert await provisioner.states() == {"stopping": 40}
    assert await provisioner.database.fetchval("SELECT sum(failures) FROM launch_config_outcomes") == 40


async def test_a_machine_that_is_not_listed_yet_across_a_jump_of_the_clock(provisioner: Provisioner) -> None:
    """A listing may lack a machine that was created just before, whatever the clock says since; later it is missing."""
    await provisioner.starting()
    provisioner.cloud.live.clear()
    await provisioner.jump_clock(3600)
    await provisioner.reap()
    assert await provisioner.states() == {"starting": 1}
    await provisioner.expire()
    await provisioner.set_clock(3661)
    await provisioner.jump_clock(7200)
    await provisioner.expire()
    await provisioner.reap()
    assert await provisioner.states() == {"stopped": 1}


async def test_a_call_in_flight_across_a_jump_of_the_clock(provisioner: Provisioner) -> None:
    """Its outcome is looked up once its own time has passed, not that of the clock."""
    provisioner.cloud.script.append(OutcomeUnknown("no reply"))
    await provisioner.admitted()
    await provisioner.launch()
    await provisioner.jump_clock(3600)
    await provisioner.expire()
    await provisioner.resolve()
    assert await provisioner.states() == {"launching": 1}
    await provisioner.set_clock(3600 + 15)
    await provisioner.resolve()
    assert await provisioner.states() == {"requested": 1}
    assert await provisioner.published(WorkerLaunched) == []


async def test_a_slow_start_of_others_is_no_page_unless_tasks_wait(provisioner: Provisioner) -> None:
    """In the first minutes the lease-broker may be starting, too. Later its absence is a page whether tasks wait or
    not."""
    await provisioner.declare()
    await provisioner.demand(report(0))
    starting, started = Watch(lambda service: 40.0), Watch(lambda service: 40.0)
    started.began -= START_SECONDS
    await starting.step(provisioner.database)
    assert await provisioner.published(AlertRaised) == []
    await started.step(provisioner.database)
    assert {alert.subject_id for alert in await provisioner.published(AlertRaised)} == {
        "lease-broker",
        "weight-calculator",
    }
    await provisioner.demand(report(4, at=1))
    await starting.step(provisioner.database)
    assert {alert.command for alert in await provisioner.published(AlertRaised)} == {
        "slipway doctor  # then read the log of the lease-broker",
        "slipway doctor  # then read the log of the weight-calculator",
    }
