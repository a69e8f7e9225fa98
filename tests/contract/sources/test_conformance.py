"""Conformance of sources of demand, check by check, each on every kind and on one from outside the tree."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from slipway_common.declaration.strict_yaml import Invalid, write
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_monitor.domain.counts import Counting, Unreadable
from slipway_monitor.loops.report import read_once
from slipway_monitor.source_file import Entry, read
from slipway_monitor.sources.port import Source
from tests.contract.sources.servers import WORLDS, KafkaWorld
from tests.contract.sources.worlds import SECRET, NotAvailable, World, installed
from tests.support.folders import temporary_folder

OUTSIDE: Final = """
from pathlib import Path
from slipway_monitor.domain.counts import Counts, Unreadable
from slipway_monitor.sources.port import SourceSettings

class Settings(SourceSettings):
    folder: Path

class Source:
    Settings = Settings

    def __init__(self, settings):
        self.settings = settings

    async def read(self):
        try:
            return [Counts(len(list(self.settings.folder.iterdir())))]
        except OSError as error:
            raise Unreadable(error.strerror) from None

    async def close(self):
        pass
"""
READ_SECONDS: Final = 20.0


@pytest.fixture(scope="module", autouse=True)
def outside(session_folder: Path) -> Iterator[None]:
    """An installed distribution with a source."""
    site = installed(session_folder / "site", "folder_source", "folder", OUTSIDE)
    sys.path.insert(0, str(site))
    yield
    sys.path.remove(str(site))


@pytest.fixture(params=[*WORLDS, "kafka_lag"])
async def unstarted(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kafka: EmbeddedKafka
) -> AsyncIterator[World]:
    """A queue whose server does not run yet."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with temporary_folder("slipway-source-") as folder:
        make: Callable[[Path], World] = WORLDS.get(request.param, lambda _: KafkaWorld(kafka))
        made = make(folder)
        yield made
        await made.close()


@pytest.fixture
async def world(unstarted: World) -> World:
    """An empty queue."""
    try:
        await unstarted.start()
    except NotAvailable as error:
        pytest.skip(f"not run: {error}")
    return unstarted


def entry(world: World, **changes: Any) -> Entry:
    """The queue as an entry of a file of sources."""
    usual = {"name": "builds", "kind": world.kind, "counts": world.counts, "claims": "hooks", "pool": "linux"}
    (found,) = read(write({"sources": [usual | {"timeout_seconds": READ_SECONDS} | world.settings() | changes]}))
    return found


async def counted(source: Source) -> tuple[int, int | None]:
    (counts,) = (await read_once(source, READ_SECONDS)).counts
    return counts.tasks, counts.running


def expected(world: World, waiting: int, running: int) -> tuple[int, int | None]:
    match Counting(world.counts):
        case Counting.WAITING:
            return waiting, None
        case Counting.WAITING_AND_RUNNING:
            return waiting + running, None
        case Counting.BOTH:
            return waiting, running


async def test_01_to_05_counts_an_outage_and_the_way_back(world: World) -> None:
    """1: an empty queue is zero. 2: tasks that wait. 3: tasks that run, as the source says. 4: nothing while the server
    is away. 5: the same source counts again once it is back."""
    source = entry(world).open()
    try:
        assert await counted(source) == expected(world, 0, 0)
        await world.put(5)
        assert await counted(source) == expected(world, 5, 0)
        await world.take(2)
        assert await counted(source) == expected(world, 3, 2)
        if "away" not in world.without:
            await world.away()
            for _ in range(2):
                with pytest.raises(Unreadable):
                    await read_once(source, READ_SECONDS)
            await world.back()
            waiting, running = await counted(source)
            if running == 0 and world.kind == "rabbitmq":
                return  # what was not acknowledged waits again
            assert (waiting, running) == expected(world, 3, 2)
    finally:
        await source.close()


async def test_06_an_answer_that_is_no_count(world: World) -> None:
    """Nothing is reported, and the reason quotes nothing that may be a secret."""
    if "spoil" in world.without:
        pytest.skip("its server gives no such answer")
    await world.spoil()
    source = entry(world).open()
    with pytest.raises(Unreadable) as refused:
        await read_once(source, READ_SECONDS)
    await source.close()
    assert SECRET not in str(refused.value)


async def test_07_a_queue_that_does_not_exist(world: World) -> None:
    """It is not empty: a name may be misspelt."""
    if "remove" in world.without:
        pytest.skip("it has no difference between an empty queue and none")
    await world.remove()
    source = entry(world).open()
    with pytest.raises(Unreadable):
        await read_once(source, READ_SECONDS)
    await source.close()


async def test_08_a_server_that_does_not_answer(world: World) -> None:
    """A read ends in time."""
    if "hang" in world.without or "away" in world.without:
        pytest.skip("its server is shared, or none")
    await world.hang()
    source = entry(world, timeout_seconds=1.0).open()
    with pytest.raises(Unreadable):
        await read_once(source, 1.5)
    await source.close()


async def test_09_a_source_that_was_never_read_is_closed_and_closed_again(unstarted: World) -> None:
    source = entry(unstarted).open()
    await source.close()
    await source.close()


async def test_10_unknown_fields_are_refused(unstarted: World) -> None:
    """With a line, whatever the kind."""
    with pytest.raises(Invalid) as refused:
        entry(unstarted, bogus=1)
    assert "bogus: unknown field" in str(refused.value)
    assert all(problem.line for problem in refused.value.problems)
