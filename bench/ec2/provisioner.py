"""`python -m bench.ec2.provisioner URL DATABASE`: EC2 machines as the provisioner launches and ends them.

These are its own loops on a real database. The launcher commits each call, takes tokens from the buckets in the
database, sends the call and records the instances. A pass of the instance reaper lists the account, records what runs,
and looks for remains. The loop of terminations ends the instances, and a second pass confirms by id that they are gone.
The provider is the installed one, as `main.py` composes it. Demand, planning, leases and requests to stop are not
metered: they are the same for every provider.
"""

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from bench.ec2 import side
from bench.ec2.side import Cell, Meter
from slipway_api.events.lease import LeaseRequested
from slipway_api.events.lifecycle import State
from slipway_api.events.pool import DemandReported
from slipway_common.database import postgres
from slipway_provisioner.apply.termination import terminate
from slipway_provisioner.store import marks
from tests.support.provisioner import PASSED, SERVICE, Provisioner, after

ACCOUNT: Final = "bench/aws"
CREDENTIAL: Final = "SLIPWAY_BENCH"
LONG_SECONDS: Final = 1e9
TERMINATED_AT_ONCE: Final = 50  # by one step of the loop
# The host's time, and how far the benchmark has put it forward: no deadline is waited for.
CLOCK: Final = """
CREATE TABLE bench_clock (ahead interval NOT NULL);
INSERT INTO bench_clock VALUES (interval '0 s');
CREATE OR REPLACE FUNCTION slipway_clock() RETURNS timestamptz LANGUAGE sql VOLATILE
AS 'SELECT clock_timestamp() + ahead FROM bench_clock'"""
AHEAD: Final = "UPDATE bench_clock SET ahead = ahead + $1 * interval '1 s'"
BEYOND_DEADLINES_SECONDS: Final = 1000.0
BURST: Final = 5  # launch calls for which the full bucket has tokens
REFILL_SECONDS: Final = 5.0


def declaration(pools: int) -> dict[str, Any]:
    """Declaration of an account of EC2 and of pools with a launch config each. Their machines boot when EC2 says so."""
    account = {
        "id": ACCOUNT,
        "provider": "aws",
        "region": side.REGION,
        "credential": {"name": "bench"},
        "identity": side.IDENTITY,
        "lease_pool": "bench",
    }
    config = {
        "account": ACCOUNT,
        "zone": side.ZONE,
        "instance_type": side.INSTANCE_TYPE,
        "image": side.IMAGE,
    }
    evidence = {"boot": "provider_running", "claim": "none"}
    pool = {"max_capacity": 1000, "mode": "enforce", "evidence": evidence, "launch_configs": [config]}
    return {
        "version": 1,
        "lease_pools": [{"id": "bench", "limit": 1000}],
        "accounts": [account],
        "worker_pools": [{"id": f"bench/{number}", **pool} for number in range(pools)],
    }


def permitted(url: str) -> str:
    """Operator's settings of the provider, as SLIPWAY_PROVIDERS has them."""
    entry = {"endpoint_url": url, "sts_endpoint_url": url}
    return json.dumps({"aws": {"entries": {"default": entry}, "credentials": {"bench": {"environment": CREDENTIAL}}}})


class Lives:
    """Rounds of a provisioner whose machines are those of the stand-in at `url`."""

    def __init__(self, provisioner: Provisioner, url: str) -> None:
        self.provisioner = provisioner
        self.url = url
        self.pools = 0

    async def play(self, cell: Cell, meter: Meter) -> None:
        """Launch machines, list them until they run, terminate them, and find them gone."""
        await self._declare(cell)
        for first in range(0, cell.calls, BURST):
            await self._admit(range(cell.calls)[first : first + BURST], cell.size)
            with meter.running():
                await self.provisioner.launch()
            await self._forward(REFILL_SECONDS)
        await self._expect({State.STARTING: cell.machines})
        await self._forward()
        with meter.running():
            await self.provisioner.reap()
        await self._expect({State.RUNNING: cell.machines})
        await self._stop()
        await self._expect({State.STOPPING: cell.machines})
        for _ in range(0, cell.machines, TERMINATED_AT_ONCE):
            with meter.running():
                await self.provisioner.terminate_instances()
        await side.until_ended(self.url)
        await self._forward()
        with meter.running():
            await self.provisioner.reap()
        await self._expect({})

    async def _declare(self, cell: Cell) -> None:
        """Declare a pool for each launch call, all of them healthy, and fill the buckets."""
        if self.pools < cell.calls:
            self.pools = cell.calls
            await self.provisioner.declare(declaration(cell.calls))
        await self.provisioner.trust()
        await self._forward()

    async def _admit(self, pools: Sequence[int], size: int) -> None:
        """Bring intents of these pools to granted leases, each of which is launched by one call."""
        provisioner, ids = self.provisioner, [f"bench/{number}" for number in pools]
        now = await provisioner.database.fetchval("SELECT slipway_clock()")
        await provisioner.demand(
            *(DemandReported(pool_id=id_, source="bench", pending=size, claimed=0, observed_at=now) for id_ in ids)
        )
        async with provisioner.database.acquire() as db, db.transaction():
            await marks.dirty(db, ids, reason="bench")
        await provisioner.plan()
        requests = await provisioner.published(LeaseRequested)
        end = after(LONG_SECONDS)
        await provisioner.leases(*(provisioner.granted(one, expires_at=end, hold_until=end) for one in requests))

    async def _stop(self) -> None:
        """Ask all workers to stop, as a person does; their agents say nothing, so that the grace period passes."""
        for worker in await self.provisioner.workers():
            if worker.state is not State.STOPPED:
                async with self.provisioner.database.acquire() as db, db.transaction():
                    await terminate(db, worker.id, by="bench", reason="the round is over")
        await self._forward()

    async def _forward(self, seconds: float = BEYOND_DEADLINES_SECONDS) -> None:
        """Put the clock forward, so that no deadline and no token is waited for."""
        await self.provisioner.database.execute(AHEAD, seconds)
        await self.provisioner.database.execute(PASSED)

    async def _expect(self, wanted: dict[State, int]) -> None:
        states = {state: n for state, n in (await self.provisioner.states()).items() if state != State.STOPPED}
        if states != wanted:
            raise AssertionError(f"workers are {states}, not {wanted}")


async def main() -> None:
    url, database_url = sys.argv[1:]
    os.environ |= {f"{CREDENTIAL}_ACCESS_KEY_ID": side.KEY, f"{CREDENTIAL}_SECRET_ACCESS_KEY": side.SECRET}
    async with contextlib.AsyncExitStack() as stack:
        database = await postgres.connect(database_url, SERVICE)
        stack.push_async_callback(database.close)
        await database.execute(CLOCK)
        provisioner = Provisioner(
            database,
            call_timeout_seconds=side.CALL_SECONDS,
            providers=permitted(url),
            secrets_in_environment=True,
        )
        stack.push_async_callback(provisioner.stop)
        provider = provisioner.app.state.providers["aws"]
        provisioner.providers["aws"] = provider
        stack.push_async_callback(provider.close)
        await provider.open()
        await side.serve(Lives(provisioner, url).play)


if __name__ == "__main__":
    side.run(main)
