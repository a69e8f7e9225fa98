import asyncio
import sys
from collections import Counter

from slipway_api.events.lease import LeaseGranted
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.lease_broker import Broker, terms

STEPS_AT_LEAST = 10


async def test_exactly_once_under_crashes(broker: Broker, postgres: EmbeddedPostgres) -> None:
    """ "kill -9 at every step" of a grant: one lease, one event, and no request left waiting."""
    await broker.declare(terms(limit=1000))
    name = await broker.pool.fetchval("SELECT current_database()")
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.requirements.victim", postgres.url(name), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await victim.communicate()
    assert victim.returncode == 0
    died = int(output.splitlines()[-1])
    assert died >= STEPS_AT_LEAST
    once = Counter(f"r{number}" for number in range(1, died + 2))
    assert Counter(event.request_id for event in await broker.events() if isinstance(event, LeaseGranted)) == once
    leases = await broker.pool.fetch("SELECT request_id, fencing_token FROM leases ORDER BY fencing_token")
    assert Counter(row["request_id"] for row in leases) == once
    assert [row["fencing_token"] for row in leases] == list(range(1, died + 2))
    assert await broker.pool.fetchval("SELECT count(*) FROM requests WHERE waiting_units > 0") == 0
