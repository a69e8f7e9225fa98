"""`python -m bench.fleet.provisioner DATABASE`: a provisioner with a large fleet, in a process of its own.

These are its own loops on a real database, as `main.py` composes them: the instance reaper, which lists all accounts,
and the launcher. Machines of the fleet are rows that are inserted at once. Launches are granted at a steady rate,
whether the ones before have ended or not; a grant is the commit of an intent and its lease, and a launch ends with its
recorded outcome. Its time is without that in which the process waited for a processor. It reads a `Fleet`, then a
`Window` per line, and answers with a `Played` each.
"""

import asyncio
import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from random import Random
from typing import Any, Final

import msgspec
import psutil
import uvloop

from bench.fleet.parts import (
    CALL_SECONDS,
    IMAGE,
    INSTANCE_TYPE,
    KEY,
    LISTED_AT_ONCE,
    REGION,
    SECRET,
    ZONE,
    Fleet,
    Played,
    Window,
)
from bench.own_time import own_seconds
from bench.sides import READY
from slipway_common.base.ids import new_id
from slipway_common.database import postgres
from slipway_common.database.postgres import Database
from slipway_common.service import GARBAGE_OBJECTS
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.loops.launch import Launcher
from slipway_provisioner.loops.reap import Reaper
from slipway_provisioner.providers.port import CreateRequest, Provider
from slipway_provisioner.store.batches import Batch
from tests.support.harness import until
from tests.support.provisioner import PASSED, SERVICE, Provisioner

CREDENTIAL: Final = "SLIPWAY_FLEET"
LONG: Final = "interval '1 day'"
SAMPLE_SECONDS: Final = 0.02
# The test's clock stands still; here it is the server's.
CLOCK: Final = """
CREATE OR REPLACE FUNCTION slipway_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()'"""
BATCHES: Final = """
INSERT INTO launch_batch (id, launch_config_id, account_id, lease_id, token, body, units, state, call_deadline)
SELECT id, $2, $3, '', id::text, '{}', $4, 'known', slipway_clock() - interval '1 day' FROM unnest($1::uuid[]) AS id"""
WORKERS: Final = """
INSERT INTO worker (id, pool_id, launch_config_id, account_id, image_revision, state, decision_id, batch_id,
    instance_id, requested_at, launched_at, registered_at, last_seen_at, traceparent)
SELECT u.id, c.pool_id, c.id, c.account_id, c.image_revision, 'running', u.id, u.batch_id, u.instance_id,
    slipway_clock() - interval '1 day', slipway_clock() - interval '1 day', slipway_clock() - interval '1 day',
    slipway_clock(), ''
FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS u (id, batch_id, instance_id) CROSS JOIN launch_config c
WHERE c.id = $4"""
# An intent and its lease, as they are once a planned launch was granted.
GRANT: Final = f"""
WITH granted AS (
    INSERT INTO lease (id, request_id, lease_pool_id, launch_config_id, fencing_token, units, state, expires_at,
        hold_until, ttl_seconds, traceparent, granted_units)
    SELECT $2, $2, 'fleet', $1, $3, 1, 'confirmed', slipway_clock() + {LONG}, slipway_clock() + {LONG}, 86400, '', 1)
INSERT INTO worker (id, pool_id, launch_config_id, account_id, image_revision, state, decision_id, request_id, lease_id,
    holds_unit, requested_at, traceparent)
SELECT $4::uuid, c.pool_id, c.id, c.account_id, c.image_revision, 'requested', $4::uuid, $2, $2, true,
    slipway_clock(), ''
FROM launch_config c WHERE c.id = $1"""
PASSES: Final = "SELECT count(*) FROM account WHERE reaped_at IS NULL OR passed_at < reaped_at"


def declaration(fleet: Fleet) -> dict[str, Any]:
    """Accounts, each with a pool of its own whose machines boot when EC2 says so."""
    numbers = list(fleet.accounts)
    return {
        "version": 1,
        "lease_pools": [{"id": "fleet", "limit": 100_000}],
        "accounts": [
            {
                "id": f"fleet/{number}",
                "provider": "aws",
                "region": REGION,
                "credential": {
                    "role": f"arn:aws:iam::{number}:role/slipway",
                    "source": {"name": "fleet"},
                },
                "identity": number,
                "lease_pool": "fleet",
            }
            for number in numbers
        ],
        "worker_pools": [
            {
                "id": f"fleet/{number}",
                "mode": "enforce",
                "max_capacity": 100_000,
                "launch_configs": [
                    {
                        "account": f"fleet/{number}",
                        "zone": ZONE,
                        "instance_type": INSTANCE_TYPE,
                        "image": IMAGE,
                        "settings": {},
                    }
                ],
            }
            for number in numbers
        ],
    }


def permitted(fleet: Fleet) -> str:
    """Operator's settings of the provider, as SLIPWAY_PROVIDERS has them."""
    entry = {"endpoint_url": fleet.url, "sts_endpoint_url": fleet.url}
    return json.dumps({"aws": {"entries": {"default": entry}, "credentials": {"fleet": {"environment": CREDENTIAL}}}})


class TimedLauncher(Launcher):
    """Launcher that notes how long each launch took since its grant: its own time before and after the call, and the
    time of the call, in which it waits for the reply."""

    granted_at: dict[str, float]
    seconds: list[float]
    calls_timed: dict[str, tuple[float, float]]
    """Seconds of the call, and its end, by batch."""

    async def _call(self, database: Database, batch: Batch, account: Account, *, began: float) -> None:
        before = own_seconds() - self.granted_at[batch.lease_id]
        await super()._call(database, batch, account, began=began)
        seconds, ended_at = self.calls_timed.pop(batch.id)
        self.seconds.append(before + seconds + own_seconds() - ended_at)
        del self.granted_at[batch.lease_id]


class TimedProvider:
    """The provider of EC2, whose launch calls are timed."""

    def __init__(self, provider: Provider, launcher: TimedLauncher) -> None:
        self._provider = provider
        self._launcher = launcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def create(self, account: Account, request: CreateRequest) -> Any:
        began = time.monotonic()
        reply = await self._provider.create(account, request)
        self._launcher.calls_timed[request.batch_id] = time.monotonic() - began, own_seconds()
        return reply


class Play:
    """One provisioner and its fleet."""

    def __init__(self, provisioner: Provisioner, fleet: Fleet) -> None:
        self.database = provisioner.database
        self.provisioner = provisioner
        self.fleet = fleet
        self.launcher = TimedLauncher(provisioner.settings, dict(provisioner.providers))
        self.launcher.granted_at, self.launcher.seconds, self.launcher.calls_timed = {}, [], {}
        self.launcher.providers["aws"] = TimedProvider(provisioner.providers["aws"], self.launcher)  # type: ignore[index]
        self.reaper = Reaper(provisioner.settings, provisioner.providers)
        self.configs: list[str] = []
        self.granted = 0
        self.wakeup = asyncio.Event()

    async def prepare(self) -> None:
        """Declare everything and insert the rows of the fleet."""
        await self.provisioner.declare(declaration(self.fleet))
        await self.provisioner.trust()
        rows = await self.database.fetch("SELECT id, account_id FROM launch_config ORDER BY account_id")
        config_of = {row["account_id"]: row["id"] for row in rows}
        self.configs = list(config_of.values())
        for number, batches in self.fleet.accounts.items():
            account_id = f"fleet/{number}"
            size = len(next(iter(batches.values())))
            await self.database.execute(BATCHES, list(batches), config_of[account_id], account_id, size)
            pairs = [(batch, id_) for batch, ids in batches.items() for id_ in ids]
            ids = [new_id() for _ in pairs]
            columns = [batch for batch, _ in pairs], [id_ for _, id_ in pairs]
            await self.database.execute(WORKERS, ids, *columns, config_of[account_id])
        await self.database.execute("ANALYZE")
        await self.database.execute(PASSED)
        await self.database.execute("UPDATE account SET reaped_at = slipway_clock()")

    async def play(self, window: Window) -> Played:
        """Launch for a time, or while a round of the reaper lasts."""
        self.launcher.seconds.clear()
        process = psutil.Process()
        before = process.memory_info().rss
        peak, cpu, began = before, time.process_time(), time.monotonic()
        async with self._launches():
            if window.seconds:
                await asyncio.sleep(window.seconds)
            else:
                await self.database.execute("UPDATE account SET reaped_at = NULL")
                while await self.database.fetchval(PASSES) or self.reaper.passes:
                    while await self.reaper.reap_due(self.database):
                        pass
                    for _ in range(5):
                        await asyncio.sleep(SAMPLE_SECONDS)
                        peak = max(peak, process.memory_info().rss)
            seconds = time.monotonic() - began
        peak = max(peak, process.memory_info().rss)
        states = await self.database.fetch("SELECT state, count(*) AS n FROM worker GROUP BY state")
        found = {row["state"]: row["n"] for row in states}
        if found.get("running", 0) < self.fleet.instances or set(found) - {"running", "starting"}:
            raise AssertionError(f"workers are {found}, not {self.fleet.instances} running ones and those launched")
        return Played(
            seconds=seconds,
            launches=tuple(self.launcher.seconds),
            peak_mb=peak / 1e6,
            cpu_seconds=time.process_time() - cpu,
            before_mb=before / 1e6,
        )

    @contextlib.asynccontextmanager
    async def _launches(self) -> AsyncIterator[None]:
        """Grant launches at a steady rate, and launch them, until the end; then wait for those that were granted."""
        stopped = asyncio.Event()
        tasks = [asyncio.create_task(self._grant(stopped)), asyncio.create_task(self._launch())]
        yield
        stopped.set()
        await tasks[0]
        await until(lambda: not self.launcher.granted_at, "all launches have ended")
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)

    async def _grant(self, stopped: asyncio.Event) -> None:
        rng = Random(f"{self.fleet.seed}/{self.granted}")
        order = rng.sample(self.configs, len(self.configs))
        at = time.monotonic()
        while not stopped.is_set():
            self.granted += 1
            lease_id = f"lease-{self.granted}"
            self.launcher.granted_at[lease_id] = own_seconds() - max(0.0, time.monotonic() - at)
            config = order[self.granted % len(order)]
            await self.database.execute(GRANT, config, lease_id, self.granted, new_id())
            self.wakeup.set()
            at += 1 / self.fleet.launches_per_second
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, at - time.monotonic())):
                    await stopped.wait()

    async def _launch(self) -> None:
        while True:
            self.wakeup.clear()
            if not await self.launcher.launch_next(self.database):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self.wakeup.wait()


async def main() -> None:
    fleet = msgspec.json.decode(sys.stdin.readline(), type=Fleet)
    os.environ |= {f"{CREDENTIAL}_ACCESS_KEY_ID": KEY, f"{CREDENTIAL}_SECRET_ACCESS_KEY": SECRET}
    async with contextlib.AsyncExitStack() as stack:
        database = await postgres.connect(sys.argv[1], SERVICE)
        stack.push_async_callback(database.close)
        await database.execute(CLOCK)
        settings: dict[str, Any] = {
            "call_timeout_seconds": CALL_SECONDS,
            "reap_seconds": 1e6,
            "providers": permitted(fleet),
            "secrets_in_environment": True,
        }
        provisioner = Provisioner(database, accounts_listed_at_once=LISTED_AT_ONCE, **settings)
        stack.push_async_callback(provisioner.stop)
        provider = provisioner.app.state.providers["aws"]
        provisioner.providers["aws"] = provider
        stack.push_async_callback(provider.close)
        await provider.open()
        play = Play(provisioner, fleet)
        await play.prepare()
        gc.collect()
        gc.freeze()
        print(READY, flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            played = await play.play(msgspec.json.decode(line, type=Window))
            print(msgspec.json.encode(played).decode(), flush=True)


if __name__ == "__main__":
    gc.set_threshold(GARBAGE_OBJECTS)
    uvloop.run(main())
