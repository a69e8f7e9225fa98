"""Work beside an apply, in processes of its own: pings of the service, and plans and starts of other pools.

`python -m bench.apply_beside ping URL FILE` and `… work URL FILE` run until they are terminated, and append a line
"kind time milliseconds" for each ping, plan and start. Times are those of the monotonic clock, which processes share.
"""

import asyncio
import contextlib
import http.client
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from itertools import cycle
from typing import Any, Final, TextIO
from urllib.parse import urlsplit

from slipway_api.events.lease import LeaseRequested
from slipway_api.events.pool import DemandReported
from slipway_common.base.clock import utc_now
from slipway_common.database import postgres
from slipway_provisioner.apply import launches
from slipway_provisioner.store import marks
from tests.support.provisioner import SERVICE, Provisioner

POOLS: Final = 10
OWNER: Final = "beside.yaml"
PENDING: Final = 4
PAUSE_SECONDS: Final = 0.005
DAY: Final = timedelta(days=1)


def declaration(pools: int = POOLS) -> dict[str, Any]:
    """Declaration of the pools that are planned and started beside."""
    account = {"id": "beside", "provider": "simulated", "region": "r", "credential": "none", "identity": "i"}
    return {
        "version": 1,
        "metadata": {"owner": OWNER},
        "accounts": [account | {"lease_pool": "all", "settings": {"url": "http://127.0.0.1:1"}}],
        "worker_pools": [
            {
                "id": f"beside/{number}",
                "max_capacity": 100,
                "launch_configs": [{"account": "beside", "zone": "a", "instance_type": "m5.large", "image": "i"}],
            }
            for number in range(pools)
        ],
    }


async def prepare(url: str) -> None:
    """Declare the pools and bring each to a granted lease with waiting intents, which can be started."""
    async with _provisioner(url) as provisioner:
        await provisioner.declare(declaration())
        await provisioner.trust()
        now = utc_now()
        for number in range(POOLS):
            pool_id = f"beside/{number}"
            report = DemandReported(pool_id=pool_id, source="bench", pending=PENDING, claimed=0, observed_at=now)
            await provisioner.demand(report)
        await provisioner.plan()
        requests = await provisioner.published(LeaseRequested)
        grants = [provisioner.granted(one, expires_at=now + DAY, hold_until=now + DAY) for one in requests]
        await provisioner.leases(*grants)


async def work(url: str, record: Callable[[str, float], None]) -> None:
    """Plan and start all the time: each start statement is rolled back, so that it can be repeated."""
    async with _provisioner(url) as provisioner:
        database, terms = provisioner.database, provisioner.launcher.terms
        leases = [row["id"] for row in await database.fetch("SELECT id FROM lease ORDER BY id")]
        for number, lease_id in enumerate(cycle(leases)):
            async with database.acquire() as db, db.transaction():
                await marks.dirty(db, [f"beside/{number % POOLS}"], reason="bench")
            began = time.monotonic()
            if await provisioner.plan_step():
                record("plan", began)
            async with database.acquire() as db:
                began = time.monotonic()
                transaction = db.transaction()
                await transaction.start()
                if not await launches.start(db, [lease_id], terms, provisioner.providers):
                    raise AssertionError(f"nothing starts under {lease_id}")
                record("start", began)
                await transaction.rollback()
            await asyncio.sleep(PAUSE_SECONDS)


def ping(url: str, record: Callable[[str, float], None]) -> None:
    """Ping the service all the time: a delayed answer shows how long its event loop was busy with something else."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port or 80, timeout=30)
    while True:
        began = time.monotonic()
        connection.request("GET", "/livez")
        connection.getresponse().read()
        record("ping", began)
        time.sleep(PAUSE_SECONDS)


@contextlib.asynccontextmanager
async def _provisioner(url: str) -> AsyncIterator[Provisioner]:
    database = await postgres.connect(url, SERVICE, size=2)
    provisioner = Provisioner(database)
    try:
        yield provisioner
    finally:
        await provisioner.stop()
        await database.close()


def _recorder(lines: TextIO) -> Callable[[str, float], None]:
    def record(kind: str, began: float) -> None:
        lines.write(f"{kind} {began} {(time.monotonic() - began) * 1000:.3f}\n")

    return record


def main(kind: str, url: str, file: str) -> None:
    with open(file, "w", buffering=1) as lines:
        if kind == "ping":
            ping(url, _recorder(lines))
        else:
            asyncio.run(work(url, _recorder(lines)))


if __name__ == "__main__":
    main(*sys.argv[1:])
