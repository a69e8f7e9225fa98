"""A machine that its cloud is about to take away."""

from collections.abc import AsyncIterator

import pytest

from slipway_common.events.signal import SignalRaised
from slipway_common.events.worker import WorkerStopping
from slipway_local.postgres import EmbeddedPostgres
from slipway_provisioner.loops import plan
from tests.provisioner import Provisioner, after, provisioner_on


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Provisioner]:
    monkeypatch.setattr(plan, "COALESCE_SECONDS", 0.0)
    async with provisioner_on(postgres) as provisioner:
        yield provisioner


def interruption(worker_id: str, *, ttl: float = 120, kind: str = "spot_interruption") -> SignalRaised:
    return SignalRaised(
        source="spot-watch", target_kind="worker", target_id=worker_id, kind=kind, reason="reclaimed in 2 minutes",
        observed_at=after(0), ttl_seconds=ttl,
    )  # fmt: skip


async def test_an_interrupted_worker_is_told_to_leave(provisioner: Provisioner) -> None:
    """Once, with the reason; no stage ends by it, so its config is charged nothing."""
    first, _ = await provisioner.starting(2)
    await provisioner.events()
    await provisioner.signals(interruption(first.id), interruption(first.id))
    (told,) = await provisioner.told(WorkerStopping)
    assert (told.worker_id, told.outcome) == (first.id, None)
    assert told.reason == "spot interruption, says spot-watch: reclaimed in 2 minutes"
    assert await provisioner.states() == {"stopping": 1, "starting": 1}
    assert await provisioner.pool.fetchval("SELECT sum(failures) FROM launch_config_outcomes") in (None, 0)
    await provisioner.signals(interruption(first.id))
    assert await provisioner.told(WorkerStopping) == []


async def test_what_interrupts_nobody(provisioner: Provisioner) -> None:
    """A signal whose time is over, one on another matter, a worker that nobody knows, and no worker's id at all."""
    (worker,) = await provisioner.starting()
    await provisioner.set_clock(60)
    for signal in (
        interruption(worker.id, ttl=60), interruption(worker.id, kind="down"),
        interruption("00000000-0000-7000-8000-000000000000"), interruption("i-0001"),
    ):  # fmt: skip
        await provisioner.signals(signal)
    assert await provisioner.states() == {"starting": 1}
    await provisioner.signals(interruption(worker.id, ttl=61))
    assert await provisioner.states() == {"stopping": 1}
