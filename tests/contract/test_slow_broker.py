"""Lease sessions with a real lease-broker whose answers come late: a slow broker is not an unavailable one."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import pytest

from slipway_api.http.lease_broker import Lease
from slipway_client.leases.admission import Admission, FailOpen
from slipway_client.leases.broker import Broker
from slipway_client.leases.errors import Unreachable
from slipway_client.leases.host import Host
from slipway_client.leases.session import Session
from slipway_client.leases.state import State
from slipway_client.leases.terms import Wanted
from slipway_client.transport.patience import Patience
from slipway_common.base.clock import monotonic_seconds
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.drills.proxy import Proxy
from tests.support.harness import until
from tests.support.lease_broker_http import World, world_on
from tests.support.serving import listening

TIMEOUT_SECONDS: Final = 0.4
LATE_SECONDS: Final = 1.0
"""Longer than two timeouts: two answers are missed before one is waited for."""


class Slow(msgspec.Struct):
    """A lease-broker behind a proxy, and clients of it."""

    world: World
    proxy: Proxy
    url: str
    folder: Path
    lines: list[str]

    def session(self, *, max_wait_seconds: float) -> Session:
        """A session that would start without a lease soon, if the broker were unavailable."""
        admission = Admission(
            begun_at=monotonic_seconds(),
            max_wait_seconds=max_wait_seconds,
            fail_open=FailOpen.SAFE,
            unavailable_seconds=4 * LATE_SECONDS,
        )
        host = Host(
            Broker(self.url, "secret of ann", Patience(least_seconds=TIMEOUT_SECONDS)),
            State(self.folder, self.url, self.lines.append),
            Random(1),
            self.lines.append,
        )
        return Session(host, Wanted(lease_pool_id="sim-a", request_id="r", holder="host:1:a"), admission)

    async def is_free(self) -> bool:
        return await self.world.broker.held() == 0


@pytest.fixture
async def slow(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Slow]:
    async with world_on(postgres, tmp_path) as world, listening(world.replica.app) as url:
        proxy = Proxy(int(url.rpartition(":")[2]))
        proxy.delay = lambda: LATE_SECONDS
        yield Slow(world, proxy, f"http://127.0.0.1:{await proxy.start()}", tmp_path, [])


async def test_a_late_grant_is_used(slow: Slow) -> None:
    """The first answer is missed, and the next request, which waits longer, finds the lease that it granted."""
    session, lease = slow.session(max_wait_seconds=20 * LATE_SECONDS), None
    with contextlib.suppress(Unreachable):
        lease = await session.acquire()
    assert isinstance(lease, Lease)
    assert lease.fencing_token == 1, "the first request was granted, and no other one"
    assert any("no answer within 0.4 s" in line for line in slow.lines)
    assert await slow.world.broker.held() == 1
    await session.withdraw()
    await session.release("done")
    assert await slow.is_free()


async def test_a_late_grant_is_released_with_its_request(slow: Slow) -> None:
    """The wait ends before any answer: nothing stays held, although the caller never learnt of the grant."""
    session = slow.session(max_wait_seconds=TIMEOUT_SECONDS)
    with pytest.raises(Unreachable):
        await session.acquire()
    await until(slow.is_free, "the grant is released")
    rows = await slow.world.broker.pool.fetch("SELECT state, fencing_token FROM leases")
    assert [tuple(row) for row in rows] == [("released", 1)], "it was granted"
