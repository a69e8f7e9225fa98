"""The monitor on real servers: reports that are published, leadership of two replicas, and reports of a deposed one."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

import asyncpg
import pytest
from structlog.testing import capture_logs

from slipway_api.events.pool import DemandReported
from slipway_api.events.topics import POOL_DEMAND
from slipway_common.base.clock import utc_now
from slipway_common.database import outage
from slipway_common.database.outage import Outage
from slipway_common.declaration.strict_yaml import write
from slipway_common.messaging.envelope import decode, decode_data
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_monitor import leadership
from slipway_monitor.domain.counts import Counts, Unreadable
from slipway_monitor.leadership import Alone, Leadership
from slipway_monitor.loops.report import Reporter
from slipway_monitor.publisher import Publisher
from slipway_monitor.source_file import Entry, read
from slipway_monitor.sources.port import SourceSettings
from tests.support.harness import Place, read_all, until
from tests.support.provisioner import Provisioner, declared, provisioner_on, report

END_SESSIONS: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'slipway-monitor'"
)


class Queue:
    """A queue as a source sees it, in memory."""

    Settings: ClassVar[type[SourceSettings]] = SourceSettings
    waiting: int | None = 3
    retry_after = 0.0

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        self.read_at: list[datetime] = []

    async def read(self) -> Sequence[Counts]:
        self.read_at.append(utc_now())
        if self.waiting is None:
            raise Unreadable("away", self.retry_after)
        return [Counts(self.waiting)]

    async def close(self) -> None:
        pass


def entry() -> Entry:
    """An entry whose source is `Queue`."""
    body = {"name": "q", "kind": "exec", "counts": "waiting", "claims": "hooks", "pool": "linux"}
    (found,) = read(write({"sources": [body | {"command": ["true"], "interval_seconds": 0.1}]}))
    return Entry(found.settings, Queue)


@contextlib.asynccontextmanager
async def running(*works: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_reports_are_events_of_the_time_before_the_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One per interval, as the contract has them; nothing while the queue cannot be read, and again afterwards."""
    await place.create(POOL_DEMAND)
    publisher = Publisher(place.kafka.bootstrap, place.prefix)
    await publisher.start()
    reporter = Reporter(entry(), Alone(), publisher.publish, Random(1))
    for waiting in (3, None, 0):
        monkeypatch.setattr(Queue, "waiting", waiting)
        await reporter.report()
    await reporter.close()
    await publisher.stop()
    records = await read_all(place, POOL_DEMAND.name)
    events: list[Any] = [decode_data(decode(r.headers, received_at=utc_now()).type, r.value) for r in records]
    assert [(each.pending, each.claimed, each.source) for each in events] == [(3, None, "q"), (0, None, "q")]
    assert {record.key.decode() for record in records} == {"linux/q"}


async def test_a_queue_may_ask_not_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Queue, "waiting", None)
    monkeypatch.setattr(Queue, "retry_after", 30.0)

    async def publish(_: DemandReported) -> None:
        raise AssertionError("nothing is reported")

    assert await Reporter(entry(), Alone(), publish, Random(1)).report() == 30.0


async def test_one_replica_leads_a_source(postgres: EmbeddedPostgres) -> None:
    """Another takes over once the session of the first has ended, with a later epoch."""
    first, second = (Leadership(postgres.url(), "scope/", ["q", "r"]) for _ in range(2))
    other_scope = Leadership(postgres.url(), "other/", ["q"])
    async with running(first.run()):
        await until(lambda: _value(first.leads("q") and first.leads("r")), "the first leads")
        epoch = first.epoch("q")
        async with running(second.run(), other_scope.run()):
            await until(lambda: _value(other_scope.leads("q")), "another deployment has its own")
            assert not second.leads("q")
            admin = await asyncpg.connect(postgres.url())
            await admin.execute(END_SESSIONS)
            await admin.close()

            async def leader() -> bool:
                return any((each.epoch("q") or 0) > (epoch or 0) and each.leads("q") for each in (first, second))

            await until(leader, "one leads again, after the server has ended all sessions")
            assert not (first.leads("q") and second.leads("q"))
    async with running(second.run()):
        await until(lambda: _value(second.leads("q")), "the second leads")
        assert not first.leads("q")
        assert epoch is not None
        assert (second.epoch("q") or 0) > epoch


async def _value(value: Any) -> Any:
    return value


@contextlib.asynccontextmanager
async def replica(place: Place, folder: Path) -> AsyncIterator[tuple[Process, Callable[[str], Awaitable[bool]]]]:
    """A process of a monitor that counts three tasks, and whether it has logged a text."""
    folder.mkdir()
    file, log = folder / "sources.yaml", folder / "log"
    body = {"name": "q", "kind": "exec", "counts": "waiting", "claims": "hooks", "pool": "linux"}
    file.write_text(write({"sources": [body | {"command": ["echo", "3"], "interval_seconds": 0.1}]}))
    environment = {"SLIPWAY_KAFKA": place.kafka.bootstrap, "SLIPWAY_TOPIC_PREFIX": place.prefix}
    environment |= {"SLIPWAY_DATABASE_URL": place.postgres.url(), "SLIPWAY_PORT": "0"}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "slipway_monitor.main", "run", str(file)),
            stdout=output,
            stderr=output,
            env=os.environ | environment,
        )

    async def has_logged(text: str) -> bool:
        return text in log.read_text()

    try:
        yield process, has_logged
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_leader_that_is_stopped_and_continued(place: Place, tmp_path: Path) -> None:
    """It is deposed within seconds. Continued, it reports nothing by its old epoch, waits, and can lead again."""
    await place.create(POOL_DEMAND)

    async def epochs() -> list[int]:
        records = await read_all(place, POOL_DEMAND.name)
        events: list[Any] = [decode_data(decode(r.headers, received_at=utc_now()).type, r.value) for r in records]
        return [event.epoch for event in events]

    async def leaders(number: int) -> bool:
        return len(set(await epochs())) == number

    async with replica(place, tmp_path / "first") as (first, has_logged):
        await until(lambda: leaders(1), "the first reports")
        async with replica(place, tmp_path / "second"):
            first.send_signal(signal.SIGSTOP)
            await until(lambda: leaders(2), "the second reports")
            first.send_signal(signal.SIGCONT)
            await until(lambda: has_logged("retrying"), "the first knows that it was deposed")
        await until(lambda: leaders(3), "the first leads again")
    found = await epochs()
    assert found == sorted(found)


async def test_an_outage_of_the_database_of_locks_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a replica tries to connect. No source is led meanwhile."""
    outages = Outage()
    monkeypatch.setattr(outage, "OF_THIS_PROCESS", outages)
    monkeypatch.setattr(leadership, "RETRY_SECONDS", 0.01)
    alone = Leadership("postgresql://127.0.0.1:1/none", "scope/", ["q"])
    with capture_logs() as logs:
        async with running(alone.run()):
            await until(lambda: outages._failures > 5 or len(logs) > 5, "it has tried to connect")
    assert not alone.leads("q")
    assert len(logs) == 1


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with provisioner_on(postgres) as made:
        yield made


async def test_reports_of_a_deposed_leader(provisioner: Provisioner) -> None:
    """A report of an earlier epoch changes nothing, also with a later time, and one of a later epoch counts also with
    an earlier time: the clock of a replica may be wrong. Reports without an epoch are compared by time."""
    await provisioner.declare(declared())

    async def stored() -> int:
        pending: int = await provisioner.database.fetchval("SELECT pending FROM demand")
        return pending

    await provisioner.demand(report(1, at=50, epoch=1))
    await provisioner.demand(report(2, at=10, epoch=2))
    assert await stored() == 2
    await provisioner.demand(report(3, at=55, epoch=1))
    assert await stored() == 2
    await provisioner.demand(report(4, at=40, epoch=3), report(5, at=58, epoch=2))
    assert await stored() == 4
    await provisioner.demand(report(6, at=30))
    assert await stored() == 4
    await provisioner.demand(report(7, at=45))
    assert await stored() == 7


async def test_a_later_leader_with_an_earlier_epoch(provisioner: Provisioner) -> None:
    """The clock of epochs was turned back, as by a failover to a server behind. Once the newest report is stale,
    newer ones count again, and refuse in their turn those of an epoch before."""
    await provisioner.declare(declared())

    async def stored() -> int:
        pending: int = await provisioner.database.fetchval("SELECT pending FROM demand")
        return pending

    await provisioner.demand(report(1, at=-100, epoch=9, valid_for_seconds=101))
    await provisioner.demand(report(2, at=-50, epoch=5))
    assert await stored() == 1
    await provisioner.demand(report(3, at=-100, epoch=10, valid_for_seconds=50))
    await provisioner.demand(report(4, at=-101, epoch=5))
    assert await stored() == 3
    await provisioner.demand(report(5, at=-50, epoch=5))
    assert await stored() == 5
    await provisioner.demand(report(6, at=-40, epoch=4))
    assert await stored() == 5


async def test_counts_that_are_older_than_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report is of the time before what it shows was made."""
    found: list[DemandReported] = []

    async def publish(report: DemandReported) -> None:
        found.append(report)

    usual = entry()
    old = Entry(usual.settings.model_copy(update={"behind_seconds": 30.0}), Queue)
    for each in (usual, old):
        await Reporter(each, Alone(), publish, Random(1)).report()
    assert 29 < (found[0].observed_at - found[1].observed_at).total_seconds() <= 30
