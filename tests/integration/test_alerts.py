"""Alerts as rows: open for as long as they last, whatever their topic has kept, and whole in each event."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.alert import START_SECONDS, AlertRaised, AlertResolved
from slipway_common.base.clock import utc_now
from slipway_common.database import alerts
from slipway_common.database.postgres import Database
from slipway_common.database.process_alerts import CONFIRM_SECONDS
from slipway_common.messaging import outbox
from slipway_common.service import Service, ServiceSettings
from slipway_common.web.certificates import CertificateWatch
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.authority import Authority
from tests.support.provisioner import Provisioner, provisioner_on

DAY_SECONDS: Final = 86_400.0
ZONE: Final = AlertRaised(
    dedup_key="s/config-tripped/zone-b",
    subject_kind="config",
    subject_id="zone-b",
    kind="config-tripped",
    summary="zone-b is down",
    command="slipway why zone-b",
)
OTHER: Final = AlertRaised(
    dedup_key="s/quota/sim-a", subject_kind="account", subject_id="sim-a", kind="quota", summary="q"
)


def resolved(alert: AlertRaised, summary: str = "it is over") -> AlertResolved:
    names = {name: getattr(alert, name) for name in ("dedup_key", "subject_kind", "subject_id", "kind")}
    return AlertResolved(**names, summary=summary)


class Alerting:
    """A service that raises alerts. The topic is what it has published, compacted or whole."""

    def __init__(self, provisioner: Provisioner) -> None:
        self.database: Database = provisioner.database
        self.set_clock = provisioner.set_clock
        self.step = Service("provisioner", ServiceSettings(database_url="", kafka=""))._republish_alerts

    async def send(self, *events: AlertRaised | AlertResolved) -> None:
        async with self.database.acquire() as db, db.transaction():
            await outbox.enqueue(db, events)

    async def open(self) -> list[str]:
        return [row.dedup_key for row in await alerts.fetch(self.database, open_=True, limit=10)]

    async def republish(self) -> None:
        while await self.step(self.database):
            pass

    async def topic(self) -> list[tuple[str, dict[str, Any] | None]]:
        """Key and value of each record, in order."""
        query = "SELECT key, type, value FROM outbox WHERE topic = 'slipway.alert.v1' ORDER BY id"
        return [
            (row["key"], None if row["value"] is None else {"type": row["type"], **json.loads(row["value"])})
            for row in await self.database.fetch(query)
        ]

    async def compacted(self) -> Mapping[str, dict[str, Any]]:
        """Newest record of each key, without tombstones: what is left a year later."""
        newest = dict(await self.topic())
        return {key: value for key, value in newest.items() if value is not None}


@pytest.fixture
async def service(postgres: EmbeddedPostgres) -> AsyncIterator[Alerting]:
    async with provisioner_on(postgres) as provisioner:
        yield Alerting(provisioner)


async def test_an_open_alert_outlives_its_topic(service: Alerting) -> None:
    """Open for 30 days, its records deleted by retention: it is listed, and each day it is published again."""
    await service.send(ZONE)
    for day in range(1, 31):
        await service.set_clock(day * DAY_SECONDS + day)
        await service.database.execute("DELETE FROM outbox")
        assert await service.open() == [ZONE.dedup_key]
        await service.republish()
        ((key, record),) = await service.topic()
        assert record is not None
        assert (key, record["repeat"], record["command"]) == (ZONE.dedup_key, True, ZONE.command)
        assert record["raised_at"].startswith("2026-01-01T12:00:00")


async def test_a_year_of_compaction_leaves_the_open_alerts(service: Alerting) -> None:
    """A resolution is a record of the whole alert; a week later its tombstone follows, unless it was raised again."""
    await service.send(ZONE, OTHER)
    await service.send(resolved(ZONE))
    found = await service.compacted()
    assert found[ZONE.dedup_key]["type"] == AlertResolved.type
    assert (found[ZONE.dedup_key]["command"], found[ZONE.dedup_key]["summary"]) == (ZONE.command, "it is over")
    await service.set_clock(6 * DAY_SECONDS)
    await service.republish()
    assert set(await service.compacted()) == {ZONE.dedup_key, OTHER.dedup_key}
    await service.set_clock(8 * DAY_SECONDS)
    await service.republish()
    assert set(await service.compacted()) == {OTHER.dedup_key}
    await service.send(resolved(OTHER), OTHER)
    await service.set_clock(365 * DAY_SECONDS)
    await service.republish()
    left = await service.compacted()
    assert {(key, record["type"]) for key, record in left.items()} == {(OTHER.dedup_key, AlertRaised.type)}
    assert await service.open() == [OTHER.dedup_key]


async def test_an_alert_that_changes(service: Alerting) -> None:
    """It stays one alert, raised when it began, at a higher revision; raised again after its end it is a new one."""
    await service.send(ZONE)
    await service.set_clock(60)
    await service.send(AlertRaised(**{**{n: getattr(ZONE, n) for n in ZONE.__struct_fields__}, "summary": "worse"}))
    (row,) = await alerts.fetch(service.database, limit=10)
    records = [record for _, record in await service.topic() if record is not None]
    assert (row.summary, row.raised_at.second, row.raised_at.minute) == ("worse", 0, 0)
    assert [record.get("revision", 1) for record in records] == [1, 2]
    assert len({record["raised_at"] for record in records}) == 1
    await service.send(resolved(ZONE, "well"))
    await service.set_clock(120)
    await service.send(ZONE)
    again, before = await alerts.fetch(service.database, limit=10)
    assert (again.closed_at, again.raised_at.minute, before.resolution) == (None, 2, "well")


async def test_a_notice_that_becomes_a_page(service: Alerting) -> None:
    """Its silence was for the notice, and ends; that of a page outlives its changes."""
    notice, until = msgspec.structs.replace(ZONE, severity="notice"), utc_now()
    silenced = []
    for event in (notice, notice, ZONE, ZONE):
        await service.send(event)
        (row,) = await alerts.fetch(service.database, limit=10)
        silenced.append(row.silenced_until is not None)
        async with service.database.acquire() as db:
            await alerts.silence(db, ZONE.dedup_key, until=until, by="ops", reason="r")
    assert silenced == [False, True, False, True]


async def test_an_end_without_a_beginning(service: Alerting) -> None:
    """It is published for consumers that missed one, and nothing is stored."""
    await service.send(resolved(ZONE))
    assert [key for key, _ in await service.topic()] == [ZONE.dedup_key]
    assert await alerts.fetch(service.database, limit=10) == []


async def test_what_has_happened_is_resolved_by_time(service: Alerting) -> None:
    """Nothing else would resolve an alert on a gap in a topic."""
    gap = AlertRaised(
        dedup_key="s/retention/t/0", subject_kind="partition", subject_id="t/0", kind="retention", summary="x"
    )
    await service.send(gap, ZONE)
    await service.set_clock(7 * DAY_SECONDS + 1)
    await service.republish()
    assert await service.open() == [ZONE.dedup_key]


async def test_a_process_that_was_killed_with_an_alert(service: Alerting) -> None:
    """Its alert on partitions is resolved by the process that replaces it, once the start is over."""
    left = Service("provisioner", ServiceSettings(database_url="", kafka="", instance="1"))
    await service.send(*left._unowned.changes(["t/0"], summary="s", effect="e"), OTHER)
    successor = Service("provisioner", ServiceSettings(database_url="", kafka="", instance="1"))
    await successor._watch_partitions(service.database)
    assert len(await service.open()) == 2
    successor._began -= START_SECONDS
    await successor._watch_partitions(service.database)
    assert await service.open() == [OTHER.dedup_key]
    assert [row.kind for row in await alerts.fetch(service.database, open_=False, limit=10)] == ["unowned-partition"]


async def test_a_process_that_was_scaled_away_with_an_alert(service: Alerting) -> None:
    """No process of its instance comes again, so that another one resolves what it no longer confirms."""
    living, left = (Service("provisioner", ServiceSettings(database_url="", kafka="", instance=i)) for i in "12")
    for process in (living, left):
        await service.send(*process._unowned.changes(["t/0"], summary="s", effect="e"), OTHER)
        process._unowned.raised = True
        await process._unowned.confirm(service.database)
    for seconds in (299, 301):
        await service.set_clock(seconds)
        living._unowned._confirmed_at -= CONFIRM_SECONDS
        await living._unowned.confirm(service.database)
        await service.republish()
        assert (left._unowned.dedup_key in await service.open()) is (seconds < alerts.CONFIRMED_SECONDS)
    assert sorted(await service.open()) == sorted([OTHER.dedup_key, living._unowned.dedup_key])
    assert [row.resolution for row in await alerts.fetch(service.database, open_=False, limit=10)] == [alerts.ABANDONED]


async def test_an_alert_that_was_resolved_while_its_process_could_not_confirm_it(service: Alerting) -> None:
    """It is raised again: its cause lasts. One that was killed before it could confirm its alert has ended, too."""
    process = Service("provisioner", ServiceSettings(database_url="", kafka=""))
    await service.send(*process._unowned.changes(["t/0"], summary="s", effect="e"))
    process._unowned.raised = True
    await service.set_clock(301)
    await service.republish()
    assert await service.open() == []
    await process._unowned.confirm(service.database)
    await service.send(*process._unowned.changes(["t/0"], summary="s", effect="e"))
    assert await service.open() == [process._unowned.dedup_key]


async def test_two_replicas_publish_once(service: Alerting) -> None:
    """Each alert is due to one of them."""
    await service.send(ZONE, OTHER)
    await service.set_clock(DAY_SECONDS + 1)
    await service.database.execute("DELETE FROM outbox")
    await asyncio.gather(service.republish(), service.republish())
    assert sorted(key for key, _ in await service.topic()) == sorted([ZONE.dedup_key, OTHER.dedup_key])


async def test_two_raise_the_same_alert(service: Alerting) -> None:
    """There is one open row, and one of the events is the second revision."""
    await asyncio.gather(service.send(ZONE), service.send(ZONE))
    assert await service.open() == [ZONE.dedup_key]
    assert sorted(record.get("revision", 1) for _, record in await service.topic() if record) == [1, 2]


@pytest.mark.parametrize("summary", ["a\x00b", "é" * 5_000])
async def test_any_text_can_be_stored(service: Alerting, summary: str) -> None:
    """A summary is composed from what machines and providers say."""
    await service.send(AlertRaised(dedup_key="k", subject_kind="pool", subject_id="p", kind="k", summary=summary))
    (row,) = await alerts.fetch(service.database, limit=10)
    assert row.summary.startswith(summary[:1])


async def test_a_certificate_that_ends_soon(service: Alerting, tmp_path: Path) -> None:
    """The alert is open from two weeks before the end until the file is replaced."""
    authority = Authority(tmp_path)
    certificate = authority.issue("service", ends=timedelta(days=13))
    watch = CertificateWatch("provisioner", "0", {"SLIPWAY_TLS_CERTIFICATE_FILE": certificate}, lambda: None)
    for _ in range(2):
        await watch.step(service.database)
        (alert,) = await alerts.fetch(service.database, open_=True, limit=10)
        assert "SLIPWAY_TLS_CERTIFICATE_FILE ends at" in alert.summary
    authority.issue("service")
    await watch.step(service.database)
    assert await service.open() == []
