"""Workers that cannot be terminated: a few are replaced, an account that refuses stops, and starved pools alert."""

from collections.abc import Sequence
from typing import Any, Final

import pytest

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved
from slipway_api.events.lease import LeaseRequested
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.cloud import Account, Protected
from slipway_provisioner.providers.port import TerminationRefused
from tests.support.cloud import Cloud
from tests.support.provisioner import Provisioner, after, declared, provisioner_on, report, weight

WHY: Final = Protected("OperationNotPermitted: it is protected", "unprotect it")
REFUSED, STARVED = "termination-refused", "pool-starved"
STOPPED: Final = 600.0
"""Time at which workers are terminated that were asked to stop."""
OVERDUE: Final = 2000.0
"""Time at which boots that began at 0 have timed out."""


async def demand(provisioner: Provisioner, pending: int, *, at: float) -> None:
    await provisioner.demand(report(pending, at=at, valid_for_seconds=86_400))


async def leaving(provisioner: Provisioner, number: int, *, maximum: int, protected: int) -> list[str]:
    """Instances of workers that were asked to stop as surplus; the first `protected` of them cannot be terminated."""
    await provisioner.declare(declared(max_capacity=maximum))
    await provisioner.trust()
    await demand(provisioner, number, at=0)
    await admit(provisioner)
    everybody = await provisioner.workers()
    for worker in everybody:
        assert (await provisioner.register(worker.instance_id or "", worker.batch_id)).status_code == 200
    ids = [worker.instance_id or "" for worker in everybody]
    provisioner.cloud.protected |= dict.fromkeys(ids[:protected], WHY)
    await provisioner.set_clock(STOPPED - 150)  # after the idle timeout, and before the end of the grace period
    await demand(provisioner, 0, at=STOPPED - 150)
    await provisioner.plan()
    assert await provisioner.states() == {"stopping": number}
    return ids


async def admit(provisioner: Provisioner) -> None:
    """Plan, grant what is requested, and launch it."""
    await provisioner.plan()
    for request in await provisioner.published(LeaseRequested):
        await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()


async def passes(provisioner: Provisioner, begin: float, end: float) -> list[Alert]:
    """Terminate, list and plan once a minute; returns the alerts."""
    alerts: list[Alert] = []
    for at in range(int(begin), int(end) + 1, 61):
        await provisioner.set_clock(at)
        await provisioner.expire()
        await provisioner.terminate_instances()
        await provisioner.reap()
        await provisioner.sweep_now()
        await provisioner.plan()
        alerts += [event for event in await provisioner.events() if isinstance(event, Alert)]
    return alerts


async def decision(provisioner: Provisioner) -> dict[str, Any]:
    details: dict[str, Any] = await provisioner.database.fetchval(
        "SELECT details FROM decision ORDER BY at DESC, id DESC LIMIT 1"
    )
    return details


def kinds(alerts: Sequence[Alert], kind: str) -> list[str]:
    return ["raised" if isinstance(alert, AlertRaised) else "resolved" for alert in alerts if alert.kind == kind]


async def test_one_of_two_stuck_workers_is_replaced(provisioner: Provisioner) -> None:
    """In a pool of two, of which both refuse: five tasks are served by one worker after ten minutes, and not by none
    after two hours. Until then the decision says that there is no room."""
    await leaving(provisioner, 2, maximum=2, protected=2)
    await demand(provisioner, 5, at=STOPPED - 100)
    alerts = await passes(provisioner, STOPPED, STOPPED + 560)
    details = await decision(provisioner)
    assert (details["code"], details["reason"]) == ("no-room", "2 wanted, but no room: 2 leaving")
    assert kinds(alerts, REFUSED) == ["raised"]
    alerts = await passes(provisioner, STOPPED + 610, STOPPED + 700)
    assert await provisioner.states() == {"stopping": 2, "requested": 1}
    stuck = [alert for alert in alerts if alert.kind == REFUSED][-1]
    assert "2 workers are stuck" in stuck.effect
    assert (stuck.command, stuck.cause, stuck.evidence) == (WHY.remedy, WHY.reason, ("i-0001", "i-0002"))
    await passes(provisioner, STOPPED + 800, STOPPED + 3000)
    assert await provisioner.states() == {"stopping": 2, "requested": 1}
    assert (await decision(provisioner))["code"] == "no-room"
    provisioner.cloud.protected.clear()
    alerts = await passes(provisioner, STOPPED + 3100, STOPPED + 3300)
    assert await provisioner.states() == {"stopped": 2, "requested": 2}
    assert kinds(alerts, REFUSED)[-1] == "resolved"


async def test_an_account_that_refuses_launches_nothing(provisioner: Provisioner) -> None:
    """Four of its ten terminations are refused: nothing is freed, and one alert says so until it ends by itself."""
    await leaving(provisioner, 10, maximum=40, protected=4)
    await demand(provisioner, 40, at=STOPPED - 100)
    alerts = await passes(provisioner, STOPPED, STOPPED + 1500)
    assert await provisioner.states() == {"stopping": 4, "stopped": 6}
    assert await provisioner.database.fetchval("SELECT count(*) FROM worker WHERE stuck_at IS NOT NULL") == 4
    assert (await decision(provisioner))["stuck"] == 0
    why = "account sim-a refuses to terminate its instances"
    assert [note["reason"] for note in (await decision(provisioner))["configs"].values()] == [why]
    assert {alert.dedup_key for alert in alerts if alert.kind == REFUSED} == {f"provisioner/{REFUSED}/sim-a"}
    refused = [alert for alert in alerts if alert.kind == REFUSED]
    assert "launches nothing in this account" in refused[-1].doing
    (starved,) = [alert for alert in alerts if alert.kind == STARVED]
    assert (starved.severity, starved.cause) == ("notice", why)
    provisioner.cloud.protected.clear()
    alerts = await passes(provisioner, STOPPED + 1600, STOPPED + 1800)
    assert kinds(alerts, REFUSED)[-1] == "resolved"
    assert await provisioner.states() == {"stopped": 10, "requested": 40}


async def test_no_call_starts_in_an_account_that_refuses(provisioner: Provisioner) -> None:
    """Also for an intent that was admitted before."""
    await provisioner.admitted(1)
    await provisioner.database.execute("UPDATE account SET refuses_terminations = true")
    await provisioner.launch()
    assert provisioner.cloud.calls == []


async def test_only_a_definite_refusal_counts(provisioner: Provisioner) -> None:
    """A failure without an answer makes nobody stuck, however long it lasts."""
    ids = await leaving(provisioner, 2, maximum=2, protected=0)
    provisioner.cloud.failing |= {*ids}
    await demand(provisioner, 5, at=STOPPED - 100)
    alerts = await passes(provisioner, STOPPED, STOPPED + 4000)
    assert await provisioner.database.fetchval("SELECT sum(termination_refusals) FROM worker") == 0
    assert await provisioner.states() == {"stopping": 2}
    assert kinds(alerts, REFUSED) == []
    assert kinds(alerts, STARVED) == ["raised"]


class Hasty(Cloud):
    """Provider that names every instance of a call in which one is refused."""

    async def terminate(self, account: Account, instance_ids: Sequence[str]) -> None:
        if len(instance_ids) > 1 and self.protected.keys() & set(instance_ids):
            raise TerminationRefused(dict.fromkeys(instance_ids, WHY))
        await super().terminate(account, instance_ids)


async def test_an_instance_is_asked_for_alone_after_a_call_for_many(postgres: EmbeddedPostgres) -> None:
    """A refusal of a call for many counts for those whose own call is refused."""
    cloud = Hasty()
    async with provisioner_on(postgres, cloud) as provisioner:
        provisioner.cloud = cloud
        await leaving(provisioner, 3, maximum=3, protected=1)
        await passes(provisioner, STOPPED, STOPPED + 61)
        rows = await provisioner.database.fetch(
            "SELECT instance_id, termination_refusals FROM worker ORDER BY instance_id"
        )
        assert [tuple(row) for row in rows] == [("i-0001", 2), ("i-0002", 0), ("i-0003", 0)]
        assert await provisioner.states() == {"stopping": 1, "stopped": 2}


async def test_probes_of_a_tripped_image_do_not_fill_a_pool(provisioner: Provisioner) -> None:
    """A machine that never registers and cannot be terminated is the last that a probe leaves, until it is gone."""
    await provisioner.declare(declared(max_capacity=12))
    await provisioner.weights(tripped(permit=1))
    await demand(provisioner, 12, at=0)
    await admit(provisioner)
    assert await provisioner.states() == {"starting": 1}
    provisioner.cloud.protected["i-0001"] = WHY
    await passes(provisioner, OVERDUE, OVERDUE)
    await provisioner.weights(tripped(permit=2), revision=2)
    await passes(provisioner, OVERDUE + 100, OVERDUE + 2000)
    assert await provisioner.states() == {"stopping": 1}
    (note,) = (await decision(provisioner))["configs"].values()
    assert note["reason"].endswith("its probe waits: 1 machine of an earlier probe cannot be terminated")
    provisioner.cloud.protected.clear()
    await passes(provisioner, OVERDUE + 2100, OVERDUE + 2200)
    assert await provisioner.states() == {"stopped": 1, "requested": 1}


def tripped(permit: int) -> Any:
    return weight(state="probing", probe_permit=permit, probe_ready=True, reason="tripped: boot: 5 image errors")


async def test_a_starved_pool_raises_one_alert(provisioner: Provisioner) -> None:
    """Workers wait for a lease that is never granted: after 1.5 × 900 s, until one registers."""
    await provisioner.declare()
    await provisioner.trust()
    await demand(provisioner, 3, at=0)
    await provisioner.plan()
    (request,) = await provisioner.published(LeaseRequested)
    assert kinds(await passes(provisioner, 0, 1300), STARVED) == []
    alerts = await passes(provisioner, 1361, 3000)
    found = [(alert.severity, alert.cause, alert.command) for alert in alerts if alert.kind == STARVED]
    assert found == [("page", "3 starting, none of which has registered", "slipway why linux")]
    await provisioner.leases(provisioner.granted(request, expires_at=after(4000), hold_until=after(9000)))
    await provisioner.launch()
    worker = (await provisioner.workers())[0]
    assert (await provisioner.register(worker.instance_id or "", worker.batch_id)).status_code == 200
    await provisioner.plan()
    assert kinds(await passes(provisioner, 3061, 3061), STARVED) == ["resolved"]


@pytest.mark.parametrize("stop", ["pause", "freeze", "stop-launching", "observe"])
async def test_a_person_starves_no_pool(provisioner: Provisioner, stop: str) -> None:
    """The time begins when the pool may launch again."""
    await provisioner.declare(declared(mode="observe") if stop == "observe" else None)
    await provisioner.trust()
    await demand(provisioner, 3, at=0)
    if stop == "pause":
        await provisioner.database.execute("UPDATE worker_pool SET paused = true")
    elif stop == "freeze":
        await provisioner.database.execute("UPDATE worker_pool SET frozen = true")
    elif stop == "stop-launching":
        await provisioner.database.execute(
            "INSERT INTO launch_stop (scope, scope_id, reason, by) VALUES ('account', 'sim-a', 'drill', 'test')"
        )
    assert kinds(await passes(provisioner, 0, 5000), STARVED) == []
    if stop == "pause":
        await provisioner.database.execute("UPDATE worker_pool SET paused = false")
        await provisioner.sweep_now()
        assert kinds(await passes(provisioner, 5061, 6400), STARVED) == []
        assert kinds(await passes(provisioner, 6461, 6700), STARVED) == ["raised"]


async def test_the_alert_of_a_pool_that_is_paused_ends(provisioner: Provisioner) -> None:
    """It asks for nothing that a person has stopped."""
    await provisioner.declare()
    await provisioner.trust()
    await demand(provisioner, 3, at=0)
    assert kinds(await passes(provisioner, 0, 1500), STARVED) == ["raised"]
    await provisioner.database.execute("UPDATE worker_pool SET paused = true")
    await provisioner.sweep_now()
    alerts = await passes(provisioner, 1561, 1650)
    assert kinds(alerts, STARVED) == ["resolved"]
    assert isinstance(alerts[-1], AlertResolved)
