"""Decisions of the provisioner: demand, signals, weights, launch stops, time, and declarations."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.launch_config import LaunchConfigPaused, LaunchConfigResumed, LaunchConfigState
from slipway_api.events.lease import LeaseRequested
from slipway_api.events.signal import SignalRaised
from slipway_api.events.worker import WorkerRequested
from slipway_common.base.errors import BadEvent
from slipway_provisioner.domain import planning
from slipway_provisioner.domain.pool import Observed
from slipway_provisioner.providers.port import ProviderSettings
from slipway_provisioner.providers.simulated import Simulated
from slipway_provisioner.store import configs
from tests.support.provisioner import Provisioner, administrator, after, declared, in_transaction, report, weight
from tests.support.running import COMMAND, running


async def test_the_newest_report_counts(provisioner: Provisioner) -> None:
    """The newest report per source counts; older and repeated ones change nothing and trigger no decision."""
    await provisioner.declare()
    await provisioner.trust()
    await provisioner.demand(report(3, at=5), report(9, at=4), report(2, at=1, source="other"))
    await provisioner.plan()
    assert await provisioner.states() == {"requested": 5}
    await provisioner.demand(report(9, at=5), report(9, at=3))
    assert await provisioner.plan_step() is False


async def test_a_stale_source(provisioner: Provisioner) -> None:
    """It launches nothing, protects serving workers, and triggers a decision when it becomes stale."""
    await running(provisioner, 2)
    await provisioner.demand(report(0, 2, at=1, valid_for_seconds=100), report(1, at=1, source="other"))
    await provisioner.plan()
    assert await provisioner.states() == {"running": 2, "requested": 1}
    await provisioner.set_clock(100)
    assert await provisioner.plan_step() is False
    await provisioner.set_clock(101)
    assert await provisioner.plan_step() is True
    await provisioner.plan()
    assert await provisioner.states() == {"running": 2, "requested": 1}
    await provisioner.set_clock(500)
    await provisioner.plan()
    assert await provisioner.states() == {"running": 2, "requested": 1}
    assert await provisioner.last_reason() == "nothing is needed"


@pytest.mark.parametrize(
    "bad",
    [
        report(1, at=61),
        report(1, pool_id="unheard-of"),
        report(-1),
        report(1, valid_for_seconds=0),
        report(1, source=""),
    ],
)
async def test_invalid_reports(provisioner: Provisioner, bad: Any) -> None:
    """Invalid reports are dead-lettered."""
    await provisioner.declare()
    with pytest.raises(BadEvent):
        await provisioner.demand(report(1), bad)
    assert await provisioner.database.fetchval("SELECT count(*) FROM demand") == 0


def signal(kind: str, source: str = "monitor", at: float = 0, ttl: float = 60) -> SignalRaised:
    return SignalRaised(
        source=source,
        target_kind="config",
        target_id="zone-a",
        kind=kind,
        reason="smoke",
        observed_at=after(at),
        ttl_seconds=ttl,
    )


async def test_pause_by_signal(provisioner: Provisioner) -> None:
    """It lasts until its TTL ends; only its own source may end it earlier."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    await in_transaction(provisioner, lambda db: configs.pause(db, "zone-b", command=True, **COMMAND))
    await provisioner.events()
    await provisioner.signals(signal("pause_request"), signal("resume_request", "stranger"), signal("degraded"))
    (paused,) = await provisioner.published(LaunchConfigPaused)
    assert (paused.state, paused.by, paused.until) == ("paused", "signal:monitor", after(60))
    await provisioner.demand(report(1))
    await provisioner.plan()
    assert (await provisioner.states(), await provisioner.last_reason()) == (
        {},
        "1 needed, but no config may launch now",
    )
    await provisioner.set_clock(60)
    await provisioner.expire()
    await provisioner.plan()
    assert (await provisioner.states(), len(await provisioner.published(LaunchConfigResumed))) == ({"requested": 1}, 1)
    await provisioner.signals(signal("pause_request"))
    assert await provisioner.published(LaunchConfigPaused) == []  # its TTL had ended before it arrived


async def test_a_signal_does_not_override_a_command(provisioner: Provisioner, tmp_path: Path) -> None:
    """A monitor does not shorten the indefinite pause of an operator."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    async with administrator(provisioner, tmp_path) as client:
        assert (await client.post("/launch-configs/zone-a/pause", json={"reason": "mine"})).status_code == 200
    await provisioner.signals(signal("pause_request", ttl=1), signal("resume_request"))
    await provisioner.set_clock(100)
    await provisioner.expire()
    row = await provisioner.database.fetchrow(
        "SELECT paused, paused_by, paused_until FROM launch_config_name WHERE name = 'zone-a'"
    )
    assert tuple(row) == (True, "admin", None)


async def test_probes(provisioner: Provisioner) -> None:
    """Each permit is spent once, by demand. A delayed permit is withdrawn once its successor is issued."""
    await provisioner.declare()
    await provisioner.weights(weight(state="tripped"))
    await provisioner.demand(report(5))
    await provisioner.plan()
    assert await provisioner.states() == {}
    await provisioner.weights(weight(state="probing", probe_permit=1, probe_ready=True), revision=2)
    await provisioner.plan()
    (request,) = await provisioner.published(LeaseRequested)
    assert (request.units, (await provisioner.worker()).probe_permit) == (1, 1)
    await provisioner.weights(weight(state="probing", probe_permit=1, probe_ready=True, weight=0.5), revision=3)
    await provisioner.plan()
    assert (await provisioner.states(), await provisioner.events()) == ({"requested": 1}, [])
    await provisioner.weights(weight(state="probing", probe_permit=2, probe_ready=True), revision=4)
    await provisioner.plan()
    assert await provisioner.states() == {"requested": 1, "stopped": 1}
    await provisioner.weights(weight(state="probing", probe_permit=9, probe_ready=True), revision=3)
    assert await provisioner.plan_step() is False


async def test_a_launch_stop_that_ends_by_time(provisioner: Provisioner, tmp_path: Path) -> None:
    """Waiting intents are cancelled, and the end of the stop triggers a decision."""
    await provisioner.requested(2)
    async with administrator(provisioner, tmp_path) as client:
        body = {"scope": "pool", "scope_id": "linux", "reason": "drill", "until": after(50).isoformat()}
        assert (await client.post("/stop-launching", json=body)).status_code == 200
    await provisioner.plan()
    assert (await provisioner.states(), await provisioner.last_reason()) == (
        {"stopped": 2},
        "launching is stopped: drill",
    )
    await provisioner.set_clock(50)
    await provisioner.plan()
    assert await provisioner.states() == {"stopped": 2, "requested": 2}


async def test_a_sweep_heals_a_lost_wake_up(provisioner: Provisioner) -> None:
    """A change without a dirty mark is planned within one sweep."""
    await provisioner.declare()
    await provisioner.demand(report(1))
    await provisioner.database.execute("TRUNCATE dirty_pool")
    await provisioner.set_clock(601)
    await provisioner.sweep()
    await provisioner.demand(report(1, at=600))
    await provisioner.plan()
    assert await provisioner.states() == {"requested": 1}


async def test_a_rejected_plan_stops_only_its_pool(provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is executed; an alert is raised once, and resolved by the next valid plan."""
    body = declared()
    body["worker_pools"].append(declared("other-a", id="other")["worker_pools"][0])
    await provisioner.declare(body)
    await provisioner.demand(report(1), report(1, pool_id="other"))
    check = planning.check_plan
    monkeypatch.setattr(planning, "check_plan", lambda o, p: ["broken"] if o.pool.id == "linux" else check(o, p))
    await provisioner.plan()
    events = await provisioner.events()
    (alert,) = [event for event in events if isinstance(event, AlertRaised)]
    assert (alert.kind, "broken" in alert.summary) == ("plan-failed", True)
    assert [event.pool_id for event in events if isinstance(event, WorkerRequested)] == ["other"]
    monkeypatch.setattr(planning, "check_plan", check)
    await provisioner.set_clock(5)
    await provisioner.plan()
    (resolved,) = await provisioner.published(AlertResolved)
    assert resolved.dedup_key == alert.dedup_key


async def test_a_pool_whose_planning_fails_does_not_stop_others(
    provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is retried after 5 s; one alert is raised, and resolved once planning succeeds."""
    body = declared()
    body["worker_pools"].append(declared("other-a", id="other")["worker_pools"][0])
    await provisioner.declare(body)
    await provisioner.demand(report(1), report(1, pool_id="other"))
    decide = planning.plan

    def fails(observed: Observed, *, now: datetime) -> planning.Plan:
        return decide(observed, now=now) if observed.pool.id == "other" else 1 // 0  # type: ignore[return-value]

    monkeypatch.setattr(planning, "plan", fails)
    for seconds in (0, 4, 5, 11):
        await provisioner.set_clock(seconds)
        await provisioner.plan()
    events = await provisioner.events()
    assert [event.kind for event in events if isinstance(event, AlertRaised)] == ["plan-failed"]
    assert [event.pool_id for event in events if isinstance(event, WorkerRequested)] == ["other"]
    monkeypatch.setattr(planning, "plan", decide)
    await provisioner.plan()
    assert await provisioner.events() == []
    await provisioner.set_clock(16)
    await provisioner.plan()
    events = await provisioner.events()
    assert sum(isinstance(event, WorkerRequested) for event in events) == 1
    resolved = [(event.kind, event.dedup_key) for event in events if isinstance(event, AlertResolved)]
    assert resolved == [("plan-failed", "provisioner/plan-failed/linux")]
    await provisioner.sweep_now()
    await provisioner.plan()
    assert await provisioner.published(AlertResolved) == []


async def test_a_declaration_is_applied_whole_and_once(provisioner: Provisioner) -> None:
    """A repetition changes nothing; undeclared launch configs drain, and may be declared again."""
    assert [(c.kind, c.result) for c in await provisioner.declare(declared("zone-a", "zone-b"))] == [
        ("account", "created"),
        ("worker pool", "created"),
        ("launch config", "created"),
        ("launch config", "created"),
    ]
    first = await provisioner.events()
    assert await provisioner.declare(declared("zone-a", "zone-b")) == []
    assert await provisioner.events() == []
    (archived,) = await provisioner.declare(declared("zone-a"))
    assert (archived.id, archived.result) == ("zone-b", "archived")
    (back,) = await provisioner.declare(declared("zone-a", "zone-b"))
    assert (back.id, back.result) == ("zone-b", "reactivated")
    again = [event for event in await provisioner.events() if isinstance(event, LaunchConfigState)]
    assert [type(event).__name__ for event in (*first, *again)] == [
        "PoolCreated",
        "LaunchConfigCreated",
        "LaunchConfigCreated",
        "LaunchConfigDraining",
        "LaunchConfigUpdated",
    ]
    assert [again[0].revision, again[1].revision] == [2, 3]


@pytest.mark.parametrize(
    ("settings", "reserve_seconds", "reason"),
    [
        ({"url": None}, 180, "account sim-a: settings: url is None; the operator writes the simulator's address"),
        ({"url": "ftp://cloud"}, 180, "url is 'ftp://cloud'"),
        (
            {},
            15,
            "lease pool sim-a: reserve_seconds 15 must be above 15, which is call_timeout_seconds 5 of the provisioner "
            "+ 2 × clock_skew_seconds 5 of the provisioner",
        ),
    ],
)
async def test_a_declaration_without_time_for_a_call(
    provisioner: Provisioner, tmp_path: Path, settings: dict[str, Any], reserve_seconds: float, reason: str
) -> None:
    """It is refused with the value to write instead."""
    body = declared(settings=settings)
    body["lease_pools"][0]["reserve_seconds"] = reserve_seconds
    provisioner.app.state.providers["simulated"] = Simulated(ProviderSettings(timeout_seconds=5.0))
    async with administrator(provisioner, tmp_path) as client:
        answer = await client.put("/declaration", json=body)
    assert answer.status_code == 409
    assert reason in answer.json()["detail"]
    assert await provisioner.database.fetchval("SELECT count(*) FROM account") == 0
