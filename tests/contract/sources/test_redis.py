"""Streams whose lag Redis does not know: their entries are counted, whatever is in them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis

from slipway_common.declaration.strict_yaml import write
from slipway_monitor.domain.counts import Counts, Unreadable
from slipway_monitor.loops.report import read_once
from slipway_monitor.source_file import read
from slipway_monitor.sources import redis as kind
from tests.contract.sources.servers import RedisStreamWorld
from tests.contract.sources.worlds import NotAvailable
from tests.support.folders import temporary_folder


@pytest.fixture
async def world() -> AsyncIterator[RedisStreamWorld]:
    """A stream of three entries, of which the group has read none. A later one was deleted, so that Redis does not know
    the lag."""
    with temporary_folder("slipway-redis-") as folder:
        made = RedisStreamWorld(Path(folder))
        try:
            await made.start()
        except NotAvailable as error:
            pytest.skip(f"not run: {error}")
        async with redis.Redis(port=made.port) as client:
            for _ in range(2):
                await client.xadd("builds", {"task": b"\xff\xfe"})
            gone = await client.xadd("builds", {"task": b"gone"})
            await client.xadd("builds", {b"\xff": b"last"})
            await client.xdel("builds", gone)
            assert (await client.xinfo_groups("builds"))[0]["lag"] is None
        yield made
        await made.close()


async def counted(world: RedisStreamWorld) -> list[Counts]:
    usual: dict[str, Any] = {"name": "q", "kind": "redis", "counts": "both", "pool": "linux"}
    (entry,) = read(write({"sources": [usual | world.settings()]}))
    source = entry.open()
    try:
        return list((await read_once(source, 20.0)).counts)
    finally:
        await source.close()


async def test_entries_are_counted(world: RedisStreamWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in several portions, and binary ones."""
    assert await counted(world) == [Counts(3, 0)]
    monkeypatch.setattr(kind, "COUNTED_AT_ONCE", 2)
    assert await counted(world) == [Counts(3, 0)]


async def test_more_than_can_be_counted(world: RedisStreamWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "COUNTED_AT_ONCE", 1)
    monkeypatch.setattr(kind, "COUNTED_MAX", 2)
    with pytest.raises(Unreadable, match="the lag of the group, which is above 2"):
        await counted(world)
