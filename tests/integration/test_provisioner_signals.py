"""Signals for the provisioner: spot interruptions, pause and resume requests."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.launch_config import LaunchConfigPaused
from slipway_api.events.signal import SignalRaised
from slipway_api.events.worker import WorkerStopping
from slipway_common.database.postgres import Connection
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.store import configs
from tests.support.provisioner import Provisioner, after, declared, in_transaction, provisioner_on


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
    await provisioner.declare(TWO)
    before, counted = await states(provisioner), refused("unreached")
    await provisioner.signals(request(target_id="nope"), request(), request("resume_request", target_id="nope"))
    paused = [(id_, "paused" if id_ == "zone-a" else state) for id_, state in before]
    assert (await states(provisioner), refused("unreached")) == (paused, counted + 2)


TWO = declared("zone-a", "zone-b")
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
        await provisioner.declare(TWO)
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


# Shares of sources

FOUR = ("zone-a", "zone-b", "zone-c", "zone-d")
SHARES = "sources: {pager: {max_share: 0.25}, page: {max_share: 1}}"


@pytest.fixture
async def four(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Provisioner]:
    """A pool of four launch configs, of which pager may pause one, page all, and all other sources together two."""
    (tmp_path / "sources.yaml").write_text(SHARES)
    async with provisioner_on(postgres, signal_sources_file=tmp_path / "sources.yaml") as provisioner:
        await provisioner.declare(declared(*FOUR))
        await provisioner.events()
        yield provisioner


def requests(*names: str, **fields: Any) -> list[SignalRaised]:
    return [request(target_id=f"zone-{name}", **fields) for name in names]


async def pause_by_a_person(db: Connection, names: Sequence[str]) -> None:
    for name in names:
        assert await configs.pause(db, name, reason="r", by="ann", until=None, command=True)


async def resume_by_a_person(db: Connection, names: Sequence[str]) -> None:
    for name in names:
        assert await configs.resume(db, name, reason="r", by="ann")


async def paused(provisioner: Provisioner) -> str:
    """Last letters of the paused launch configs."""
    return "".join(name[-1] for name, state in await states(provisioner) if state == "paused")


async def test_a_source_pauses_at_most_its_share_of_a_pool(four: Provisioner) -> None:
    """Requests of one batch are decided in their order. The one beyond the share changes nothing, is counted, and
    raises an alert that says what to do."""
    counted = refused("share")
    await four.signals(*requests("d", "b", "a"))
    assert (await paused(four), refused("share")) == ("bd", counted + 1)
    events = await four.events()
    assert [type(event) for event in events] == [LaunchConfigPaused, LaunchConfigPaused, AlertRaised]
    assert (events[2].subject_kind, events[2].subject_id, events[2].severity) == ("pool", "linux", "notice")
    assert events[2].summary == (
        "pause of launch config zone-a was refused: source 'monitor' would pause 3 of 4 launch configs of pool 'linux';"
        " at most 50%"
    )
    assert events[2].command.startswith("slipway lc pause zone-a ")
    assert await four.database.fetchval("SELECT count(*) FROM audit WHERE action = 'pause'") == 2


async def test_a_pause_that_is_extended_is_no_new_share(four: Provisioner) -> None:
    await four.signals(*requests("a", "b"))
    await four.set_clock(30)
    await four.signals(*requests("a", "b", observed_at=after(30)))
    await four.set_clock(89)
    await four.expire()
    assert await paused(four) == "ab"


async def test_a_persons_pause_is_left_to_people(four: Provisioner) -> None:
    """A source neither replaces it by a longer one, after which it could resume the launch config, nor resumes it."""

    async def pause(db: Connection) -> bool:
        return await configs.pause(db, "zone-a", reason="r", by="ann", until=after(30), command=True)

    await in_transaction(four, pause)
    await four.signals(*requests("a", ttl_seconds=3600.0), *requests("a", kind="resume_request"))
    assert await paused(four) == "a"


async def test_a_resumed_or_expired_pause_frees_its_share(four: Provisioner) -> None:
    """At the end of its time, also before the launch config is resumed."""
    await four.signals(*requests("a", "b"), request("resume_request", target_id="zone-a"), *requests("c", "d"))
    assert await paused(four) == "bc"
    await four.set_clock(60)
    await four.signals(*requests("d", observed_at=after(60)))
    await four.expire()
    assert await paused(four) == "d"


async def test_unnamed_sources_have_one_share_together(four: Provisioner) -> None:
    """A source that operators have named has its own. People are not limited, and do not count."""
    await in_transaction(four, partial(pause_by_a_person, names=("zone-a", "zone-b")))
    await four.signals(*requests("c", source="one"), *requests("d", source="two"))
    assert await paused(four) == "abcd"
    await in_transaction(four, partial(resume_by_a_person, names=("zone-a", "zone-b")))
    await four.signals(*requests("a", source="three"))
    assert await paused(four) == "cd"
    await four.signals(*requests("a", "b", source="pager"))
    assert await paused(four) == "acd"
    await four.signals(*requests("b", "a", source="page", ttl_seconds=70))
    assert await paused(four) == "abcd"


async def test_each_pool_has_shares_of_its_own(four: Provisioner) -> None:
    body = declared(*FOUR)
    body["worker_pools"] += declared("zone-e", "zone-f", id="builds")["worker_pools"]
    await four.declare(body)
    await four.signals(*requests("a", "e", "b", "f", "c"))
    assert await paused(four) == "abe"


async def test_a_pool_of_one_launch_config(four: Provisioner) -> None:
    """Only a source with a share of all may pause it."""
    await four.declare(declared("zone-a"))
    await four.signals(*requests("a"), *requests("a", source="pager"))
    assert await paused(four) == ""
    await four.signals(*requests("a", source="page"))
    assert await paused(four) == "a"


async def test_a_source_of_a_pool_that_has_shrunk(four: Provisioner) -> None:
    """Its pauses end in their time, and are not extended beyond its share."""
    await four.signals(*requests("a", "b"))
    await four.declare(declared("zone-a", "zone-b"))
    await four.set_clock(30)
    await four.signals(*requests("a", "b", observed_at=after(30)))
    await four.set_clock(60)
    await four.expire()
    assert await paused(four) == ""


async def test_one_alert_until_the_refused_pauses_would_have_ended(four: Provisioner) -> None:
    """Repeated requests extend it, and those of sources without a name have one together."""

    async def keys(kind: type[AlertRaised | AlertResolved]) -> list[str]:
        return [alert.dedup_key for alert in await four.published(kind)]

    unnamed, pager = "provisioner/pause-refused/linux", "provisioner/pause-refused/linux/pager"
    await four.signals(*requests("a", "b", "c", "d"))
    assert await keys(AlertRaised) == [unnamed]
    await four.set_clock(30)
    await four.signals(*requests("d", observed_at=after(30), source="another"))
    await four.signals(*requests("c", "d", source="pager"))
    assert await keys(AlertRaised) == [pager]
    await four.set_clock(60)
    await four.expire()
    assert await keys(AlertResolved) == [pager]
    await four.set_clock(89.5)
    await four.expire()
    assert await keys(AlertResolved) == []
    await four.set_clock(90)
    await four.expire()
    assert await keys(AlertResolved) == [unnamed]
    await four.signals(*requests("a", "b", "c", observed_at=after(90)))
    assert await keys(AlertRaised) == [unnamed]


async def states(provisioner: Provisioner) -> list[tuple[str, str]]:
    return [
        (row["name"], "paused" if row["paused"] else "active")
        for row in await provisioner.database.fetch("SELECT name, paused FROM launch_config_name ORDER BY name")
    ]


def refused(reason: str) -> float:
    return REGISTRY.get_sample_value("slipway_requests_refused_total", {"reason": reason}) or 0.0
