"""Sources of demand that no longer report: how long they protect workers, and how they end."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.pool import DemandReported
from slipway_api.events.topics import POOL_DEMAND
from slipway_common.messaging.consume import Consumer, apply, claim
from slipway_common.messaging.records import Received, Record
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.apply.sources import Removed, remove_source
from slipway_provisioner.handlers.demand import record_demand
from slipway_provisioner.store.retention import DELETE_ENDED_DEMAND
from tests.support.provisioner import (
    Provisioner,
    after,
    declared,
    in_transaction,
    provisioner_on,
    received,
    report,
)

HOUR = 3600
ENDED = "SELECT source FROM demand WHERE ended_at IS NOT NULL ORDER BY source"


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with provisioner_on(postgres, unresponsive_timeout_seconds=10 * HOUR) as provisioner:
        yield provisioner


async def idle(provisioner: Provisioner, number: int) -> None:
    """Idle workers, for which source q reports tasks at 0, valid for 300 s."""
    await provisioner.starting(number)
    for worker in await provisioner.workers():
        assert (await provisioner.register(worker.instance_id or "", worker.batch_id)).is_success
    await provisioner.published(AlertRaised)


async def at(provisioner: Provisioner, seconds: float) -> None:
    """Pass over the deadlines and plan at a time."""
    await provisioner.set_clock(seconds)
    await provisioner.expire()
    await provisioner.plan()


def tombstone(key: str, *, at: float) -> Received:
    """A tombstone with CloudEvents attributes, written at a time."""
    (like,) = received(report(0))
    return msgspec.structs.replace(like, event=None, subject=key, time=after(at))


async def consume(provisioner: Provisioner, *given: Received | DemandReported) -> None:
    records = [one if isinstance(one, Received) else received(one)[0] for one in given]
    await in_transaction(provisioner, lambda db: record_demand(db, records))


async def counted(provisioner: Provisioner) -> dict[str, int]:
    """Pending tasks of each source that has not ended."""
    rows = await provisioner.database.fetch("SELECT source, pending FROM demand WHERE ended_at IS NULL")
    return {row["source"]: row["pending"] for row in rows}


async def remove(provisioner: Provisioner, source: str = "q") -> Any:
    return await in_transaction(
        provisioner, lambda db: remove_source(db, "linux", source, by="ann", reason="it was renamed")
    )


async def test_a_stale_source_protects_workers_for_an_hour(provisioner: Provisioner) -> None:
    """It raises one alert at once. After the hour it is dropped, and its idle workers stop."""
    await idle(provisioner, 2)
    await at(provisioner, 299)
    assert await provisioner.published(AlertRaised) == []
    await at(provisioner, 300)
    (raised,) = await provisioner.published(AlertRaised)
    assert (raised.kind, raised.subject_id, raised.severity) == ("demand-source-stale", "linux", "page")
    await at(provisioner, 300 + HOUR - 1)
    assert await provisioner.states() == {"running": 2}
    assert await provisioner.events() == []
    await at(provisioner, 300 + HOUR)
    assert await provisioner.states() == {"stopping": 2}
    (resolved,) = await provisioner.published(AlertResolved)
    assert resolved.dedup_key == raised.dedup_key
    assert resolved.summary.endswith("dropped, since it did not report for 65 min")


async def test_a_source_that_reports_again(provisioner: Provisioner) -> None:
    """Its alert is resolved, and it is stale once more only after its new report."""
    await idle(provisioner, 1)
    await at(provisioner, 301)
    (raised,) = await provisioner.published(AlertRaised)
    await provisioner.demand(report(1, at=302))
    await at(provisioner, 302)
    (resolved,) = await provisioner.published(AlertResolved)
    assert (resolved.dedup_key, resolved.summary.endswith("it reports again")) == (raised.dedup_key, True)
    await at(provisioner, 300 + HOUR)
    assert len(await provisioner.published(AlertRaised)) == 1
    assert await counted(provisioner) == {"q": 1}


async def test_a_dropped_source_comes_back_with_a_newer_report(provisioner: Provisioner) -> None:
    """Also with one from before it was dropped that arrives late; its own last report does not count again."""
    await idle(provisioner, 1)
    await at(provisioner, 301)
    await at(provisioner, 301 + HOUR)
    await provisioner.demand(report(1))
    assert await counted(provisioner) == {}
    await provisioner.demand(report(3, at=HOUR))
    assert await counted(provisioner) == {"q": 3}


async def test_a_clock_that_is_hours_behind(provisioner: Provisioner) -> None:
    """The source is dropped after each report, with one alert until it reports in time."""
    await provisioner.declare()
    for seconds in (0, 60, 120):
        await provisioner.set_clock(2 * HOUR + seconds)
        await provisioner.demand(report(3, at=seconds))
        await provisioner.expire()
        assert await counted(provisioner) == {}
        if seconds == 0:
            (raised,) = await provisioner.published(AlertRaised)
            assert (raised.kind, raised.severity) == ("demand-source-stale", "page")
            assert raised.command.endswith("  # then synchronise the clock of its monitor with NTP")
            assert "its last report was 2 h old" in raised.summary
    assert await provisioner.events() == []
    await provisioner.set_clock(2 * HOUR + 180)
    await provisioner.demand(report(3, at=2 * HOUR + 180))
    await provisioner.expire()
    assert [alert.dedup_key for alert in await provisioner.published(AlertResolved)] == [raised.dedup_key]
    assert await counted(provisioner) == {"q": 3}


async def test_a_late_source_that_no_longer_reports(provisioner: Provisioner) -> None:
    """Its alert is resolved after the time for which its last report was to be valid."""
    await provisioner.declare()
    await provisioner.set_clock(2 * HOUR)
    await provisioner.demand(report(3, at=0))
    await provisioner.expire()
    assert len(await provisioner.published(AlertRaised)) == 1
    await provisioner.set_clock(2 * HOUR + 299)
    await provisioner.expire()
    assert await provisioner.events() == []
    await provisioner.set_clock(2 * HOUR + 300)
    await provisioner.expire()
    assert len(await provisioner.published(AlertResolved)) == 1


async def test_an_outage_is_no_silence(provisioner: Provisioner) -> None:
    """Time in which no report could be received raises no alert and drops nothing."""
    await idle(provisioner, 2)
    await at(provisioner, 200)
    await provisioner.jump_clock(200 + 3 * HOUR)
    await provisioner.expire()
    assert await provisioner.published(AlertRaised) == []
    assert await counted(provisioner) == {"q": 2}
    await at(provisioner, 200 + 3 * HOUR + 106)
    assert len(await provisioner.published(AlertRaised)) == 1


async def test_a_tombstone_ends_a_source(provisioner: Provisioner) -> None:
    """At once, in the order of times: reports from before it do not count, also if they are read again."""
    await idle(provisioner, 2)
    await provisioner.set_clock(150)
    await consume(provisioner, tombstone("linux/q", at=100))
    await at(provisioner, 150)
    assert await provisioner.states() == {"stopping": 2}
    await consume(provisioner, report(2), report(5, at=100))
    assert await counted(provisioner) == {}
    await consume(provisioner, report(4, at=101))
    assert await counted(provisioner) == {"q": 4}
    await consume(provisioner, tombstone("linux/q", at=100))
    assert await counted(provisioner) == {"q": 4}


async def test_a_tombstone_of_a_generic_tool(provisioner: Provisioner) -> None:
    """It has a key and no headers. One whose key names no source is dead, and blocks nothing."""
    await idle(provisioner, 1)
    consumer = Consumer("provisioner", POOL_DEMAND, record_demand)
    keys = [b"linux", b"linux/q", b"unknown/q"]
    written_ms = int(after(0).timestamp() * 1000)
    records = [Record(POOL_DEMAND.name, 0, n, key, None, [], written_ms) for n, key in enumerate(keys)]
    async with provisioner.database.acquire() as db:
        owned, _ = await claim(db, POOL_DEMAND.name, 0, "cluster")
        owned = await apply(db, consumer, owned, records)
    dead = await provisioner.database.fetch('SELECT "offset", reason FROM dead_letter ORDER BY "offset"')
    assert [row["offset"] for row in dead] == [0]
    assert "is not POOL/SOURCE" in dead[0]["reason"]
    assert (owned.next_offset, await counted(provisioner)) == (3, {})


@pytest.mark.parametrize("ahead", [False, True])
async def test_a_tombstone_beside_reports(provisioner: Provisioner, ahead: bool) -> None:
    """In one batch, in any order, an end counts against what was observed up to its time, and for its source only."""
    await provisioner.declare()
    batch = [report(1, at=10), tombstone("linux/q", at=10), report(7, at=5), report(2, source="other")]
    await consume(provisioner, *(reversed(batch) if ahead else batch))
    assert await counted(provisioner) == {"other": 2}


async def test_a_tombstone_of_an_unknown_source(provisioner: Provisioner) -> None:
    """It is remembered, since its reports may be read later, from other partitions. In an unknown pool it is not."""
    await provisioner.declare()
    await consume(provisioner, tombstone("linux/new", at=10), tombstone("unknown/q", at=10))
    await consume(provisioner, report(1, at=9, source="new"))
    assert await counted(provisioner) == {}


async def test_a_stale_source_that_ends(provisioner: Provisioner) -> None:
    """The end resolves its alert, and says why."""
    await idle(provisioner, 1)
    await at(provisioner, 301)
    (raised,) = await provisioner.published(AlertRaised)
    await consume(provisioner, tombstone("linux/q", at=301))
    await at(provisioner, 302)
    (resolved,) = await provisioner.published(AlertResolved)
    assert resolved.dedup_key == raised.dedup_key
    assert resolved.summary.endswith("ended by a tombstone on its topic")


async def test_a_source_that_a_person_removes(provisioner: Provisioner) -> None:
    """Its reports up to then do not count, also those from up to a minute ahead, and the audit names the person."""
    await idle(provisioner, 1)
    await provisioner.demand(report(6, 2, at=59))
    assert await remove(provisioner) == Removed(pending=6, claimed=2, was_fresh=True)
    await at(provisioner, 130)
    await provisioner.demand(report(6, 2, at=59), report(6, at=58))
    assert await counted(provisioner) == {}
    assert await provisioner.states() == {"stopping": 1}
    assert await remove(provisioner) is None
    audit = await provisioner.database.fetchrow("SELECT by, action, reason, after FROM audit ORDER BY id DESC LIMIT 1")
    assert (audit["by"], audit["action"], audit["reason"]) == ("ann", "remove demand source", "it was renamed")
    await provisioner.demand(report(4, at=60))
    assert await counted(provisioner) == {"q": 4}


async def test_sources_of_a_deleted_pool(provisioner: Provisioner) -> None:
    """They end without an alert, and one that was raised is resolved."""
    await provisioner.declare()
    await provisioner.demand(report(1, valid_for_seconds=100), report(1, source="other"))
    await at(provisioner, 101)
    (raised,) = await provisioner.published(AlertRaised)
    await provisioner.declare(declared() | {"worker_pools": []}, prune=True)
    await at(provisioner, 400)
    events = await provisioner.events()
    assert [e for e in events if isinstance(e, AlertRaised)] == []
    assert [e.dedup_key for e in events if isinstance(e, AlertResolved)] == [raised.dedup_key]
    assert await counted(provisioner) == {}


async def test_ends_are_forgotten_after_a_week(provisioner: Provisioner) -> None:
    """By then no report from before the end is valid."""
    await idle(provisioner, 1)
    await provisioner.demand(report(1, source="other", valid_for_seconds=80_000))
    await remove(provisioner)
    for days, left in ((6, ["q"]), (8, [])):
        await provisioner.set_clock(days * 86_400)
        await provisioner.database.execute(DELETE_ENDED_DEMAND.text, 7 * 86_400.0)
        assert [row["source"] for row in await provisioner.database.fetch(ENDED)] == left
    assert await counted(provisioner) == {"other": 1}
