"""Signals for the provisioner: spot interruptions, pause and resume requests."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from slipway_common.events.signal import SignalRaised
from slipway_common.events.worker import WorkerStopping
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.loops import plan
from tests.support.provisioner import Provisioner, after, provisioner_on


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Provisioner]:
    monkeypatch.setattr(plan, "COALESCE_SECONDS", 0.0)
    async with provisioner_on(postgres) as provisioner:
        yield provisioner


def interruption(worker_id: str, *, ttl: float = 120, kind: str = "spot_interruption") -> SignalRaised:
    return SignalRaised(
        source="spot-watch",
        target_kind="worker",
        target_id=worker_id,
        kind=kind,
        reason="reclaimed in 2 minutes",
        observed_at=after(0),
        ttl_seconds=ttl,
    )


async def test_an_interrupted_worker_is_stopped(provisioner: Provisioner) -> None:
    """It is stopped once, with the reason; no stage ends by it, so its config is not charged."""
    first, _ = await provisioner.starting(2)
    await provisioner.events()
    await provisioner.signals(interruption(first.id), interruption(first.id))
    (stopping,) = await provisioner.published(WorkerStopping)
    assert (stopping.worker_id, stopping.outcome) == (first.id, None)
    assert stopping.reason == "spot interruption reported by spot-watch: reclaimed in 2 minutes"
    assert await provisioner.states() == {"stopping": 1, "starting": 1}
    assert await provisioner.database.fetchval("SELECT sum(failures) FROM launch_config_outcomes") in (None, 0)
    await provisioner.signals(interruption(first.id))
    assert await provisioner.published(WorkerStopping) == []


async def test_signals_without_effect(provisioner: Provisioner) -> None:
    """An expired signal, one of another kind, an unknown worker and an invalid worker id. Signals for the provisioner
    without effect are counted."""
    (worker,) = await provisioner.starting()
    await provisioner.set_clock(60)
    for signal, reason in (
        (interruption(worker.id, ttl=60), "expired"),
        (interruption(worker.id, kind="down"), ""),
        (interruption("00000000-0000-7000-8000-000000000000"), "unreached"),
        (interruption("i-0001"), "target"),
    ):
        counted = refused(reason)
        await provisioner.signals(signal)
        assert refused(reason) == counted + bool(reason)
    assert await provisioner.states() == {"starting": 1}
    await provisioner.signals(interruption(worker.id, ttl=61))
    assert await provisioner.states() == {"stopping": 1}


async def test_workers_without_a_machine_are_not_interrupted(provisioner: Provisioner) -> None:
    """Stopped and waiting workers are counted and not changed. A stopping worker is not counted."""
    (worker,) = await provisioner.starting()
    counted = refused("unreached")
    await provisioner.signals(interruption(worker.id), interruption(worker.id))
    assert (await provisioner.states(), refused("unreached")) == ({"stopping": 1}, counted)
    await provisioner.database.execute("UPDATE worker SET state = 'stopped', ended_at = slipway_clock()")
    await provisioner.signals(interruption(worker.id))
    assert (await provisioner.states(), refused("unreached")) == ({"stopped": 1}, counted + 1)


async def test_a_request_for_an_unknown_config(provisioner: Provisioner) -> None:
    """It is counted; the others of its batch are applied."""
    await provisioner.declare()
    before, counted = await states(provisioner), refused("unreached")
    await provisioner.signals(request(target_id="nope"), request(), request("resume_request", target_id="nope"))
    paused = [(id_, "paused" if id_ == "zone-a" else state) for id_, state in before]
    assert (await states(provisioner), refused("unreached")) == (paused, counted + 2)


RULES = "sources: {status-page: {kinds: [degraded]}, spot-watch: {ids: ['0*']}}"


def request(kind: str = "pause_request", **fields: Any) -> SignalRaised:
    usual: dict[str, Any] = {"source": "monitor", "observed_at": after(0), "ttl_seconds": 60.0, "target_id": "zone-a"}
    return SignalRaised(kind=kind, target_kind="config", reason="smoke", **usual | fields)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"source": "status-page"}, "source"),
        ({"source": "spot-watch"}, "source"),
        ({"ttl_seconds": 86_401.0}, "ttl"),
        ({"observed_at": after(61)}, "future"),
        ({"observed_at": after(-60)}, "expired"),
    ],
)
async def test_a_request_that_no_rule_allows_changes_nothing(
    postgres: EmbeddedPostgres, tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    """It is refused by the same sources file as in the weight-calculator, and counted."""
    (tmp_path / "sources.yaml").write_text(RULES)
    async with provisioner_on(postgres, signal_sources_file=tmp_path / "sources.yaml") as provisioner:
        await provisioner.declare()
        await provisioner.signals(request())
        before, counted = await states(provisioner), refused(reason)
        await provisioner.signals(request(**fields), request("resume_request", **fields))
        assert (await states(provisioner), refused(reason)) == (before, counted + 2)
        await provisioner.signals(request("resume_request"))
        assert ("zone-a", "active") in await states(provisioner)
        await provisioner.signals(request(**fields))
        assert ("zone-a", "active") in await states(provisioner)


async def test_a_source_without_permission_drains_no_worker(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    (tmp_path / "sources.yaml").write_text("unnamed: {kinds: [degraded]}")
    async with provisioner_on(postgres, signal_sources_file=tmp_path / "sources.yaml") as provisioner:
        (worker,) = await provisioner.starting()
        counted = refused("source")
        await provisioner.signals(interruption(worker.id))
        assert (await provisioner.states(), refused("source")) == ({"starting": 1}, counted + 1)


async def states(provisioner: Provisioner) -> list[tuple[str, str]]:
    return [
        (row["name"], "paused" if row["paused"] else "active")
        for row in await provisioner.database.fetch("SELECT name, paused FROM launch_config_name ORDER BY name")
    ]


def refused(reason: str) -> float:
    return REGISTRY.get_sample_value("slipway_requests_refused_total", {"reason": reason}) or 0.0
