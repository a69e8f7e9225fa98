"""A deployment of a given size: its declaration, and the rows of its machines, which stay silent.

Machines are rows that are inserted at once, and the weights of their launch configs leave windows that nothing fills,
as those of proven images do: what is measured is planning, and not the boots of machines.
"""

from collections.abc import Mapping
from typing import Any, Final

import asyncpg
import msgspec

from slipway_api.events.weight import StageHealth
from slipway_common.database import postgres
from tests.support.provisioner import SERVICE, weight

ACCOUNTS_MAX: Final = 20
IMAGES_MAX: Final = 50
ZONES: Final = ("zone-a", "zone-b", "zone-c")
LIMIT: Final = 1_000_000
DAY_SECONDS: Final = 86_400.0
SOURCE: Final = "bench"
NEWEST: Final = 2**40
"""Revision and version of the inserted records. Those of the calculator are older, and change nothing."""

# As many machines of each launch config as of any other, all busy, and heard from just now.
WORKERS: Final = """
INSERT INTO worker (id, pool_id, launch_config_id, account_id, image_revision, state, decision_id, instance_id,
    requested_at, launched_at, registered_at, first_claimed_at, last_seen_at, traceparent,
    image_key, quota_key, capacity_key, subnet_key, awaits_claim)
SELECT uuidv7(), c.pool_id, c.id, c.account_id, c.image_revision, 'running', uuidv7(), 'i-' || n,
    slipway_clock(), slipway_clock(), slipway_clock(), slipway_clock(), slipway_clock(), '',
    c.image_key, c.quota_key, c.capacity_key, c.subnet_key, c.claim_evidence <> 'none'
FROM (SELECT *, row_number() OVER (ORDER BY zone, id) - 1 AS place, count(*) OVER () AS configs FROM launch_config) c
CROSS JOIN LATERAL generate_series(c.place, $1 - 1, c.configs) AS n"""
# The machines of a pool have the tasks of its queue, and none waits.
DEMAND: Final = f"""
INSERT INTO demand (pool_id, source, pending, claimed, observed_at, valid_for_seconds, claimed_seen_at)
SELECT p.id, '{SOURCE}', 0, count(w.id), slipway_clock(), {DAY_SECONDS}, slipway_clock()
FROM worker_pool p LEFT JOIN worker w ON w.pool_id = p.id GROUP BY p.id
ON CONFLICT (pool_id, source) DO NOTHING"""
WEIGHTS: Final = f"""
INSERT INTO weight (launch_config_id, revision, record)
SELECT id, {NEWEST}, $1::jsonb || jsonb_build_object('launch_config_id', id, 'name', name, 'pool_id', pool_id)
FROM launch_config
ON CONFLICT (launch_config_id) DO UPDATE SET revision = excluded.revision, record = excluded.record"""
SHARED: Final = f"""
INSERT INTO shared_window (key, stage, version, size)
SELECT DISTINCT k.key, k.stage, {NEWEST}, {LIMIT} FROM launch_config c CROSS JOIN LATERAL shared_keys(c) AS k
ON CONFLICT (key, stage) DO UPDATE SET version = excluded.version, size = excluded.size"""
# Sweeps go on as they do, spread over their interval; accounts are not listed, since their machines are rows alone.
SETTLED: Final = (
    "UPDATE worker_pool SET swept_at = slipway_clock() - random() * interval '10 minutes'",
    "UPDATE account SET reaped_at = slipway_clock()",
    "DELETE FROM dirty_pool",
)


class Cell(msgspec.Struct, frozen=True):
    """Size of a deployment."""

    pools: int
    workers: int
    images: int

    def __str__(self) -> str:
        return f"{self.pools:,} pools × {self.workers:,} workers × {self.images} images"

    @property
    def name(self) -> str:
        """Name of the files of this cell."""
        return f"{self.pools}-{self.workers}-{self.images}"


SMALLEST: Final = Cell(20, 1_000, 5)


def images_of(pools: int) -> int:
    """Number of images unless it is given: four pools share one, and at most 50 are in use."""
    return max(1, min(IMAGES_MAX, pools // 4))


def declaration(cell: Cell) -> dict[str, Any]:
    """Pools with a launch config in each of three zones, in accounts whose lease pools neither limit nor pace."""
    accounts = [f"account-{number}" for number in range(min(ACCOUNTS_MAX, cell.pools))]
    return {
        "version": 1,
        "lease_pools": [
            {
                "id": name,
                "limit": LIMIT,
                "pacing": "off",
                "hold_seconds": DAY_SECONDS,
                "ttl_seconds": DAY_SECONDS,
                "reserve_seconds": DAY_SECONDS,
            }
            for name in accounts
        ],
        "accounts": [
            {
                "id": name,
                "provider": "simulated",
                "region": "r",
                "credential": "none",
                "identity": name,
                "lease_pool": name,
            }
            for name in accounts
        ],
        "worker_pools": [
            {
                "id": f"team/{number}",
                "mode": "enforce",
                "max_capacity": LIMIT,
                "launch_configs": [
                    {
                        "name": f"team/{number}/{zone}",
                        "account": accounts[number % len(accounts)],
                        "zone": zone,
                        "instance_type": "m5.large",
                        "image": f"linux-{number % cell.images}",
                    }
                    for zone in ZONES
                ],
            }
            for number in range(cell.pools)
        ],
    }


async def fill(url: str, cell: Cell) -> Mapping[str, int]:
    """Insert the rows of a declared cell; returns the claimed tasks of each pool, one for each of its machines."""
    stage = StageHealth(probability=0.95, successes=1000, failures=0, window=LIMIT, failures_folded=0)
    record = msgspec.to_builtins(weight("any@any", stages=dict.fromkeys(("launch", "boot", "claim"), stage)))
    session = await postgres.session(url, SERVICE, statement_timeout="0")
    try:
        await session.execute(WEIGHTS, record)
        await session.execute(SHARED)
        await session.execute(WORKERS, cell.workers, timeout=120.0)
        await session.execute(DEMAND)
        for statement in SETTLED:
            await session.execute(statement)
        claimed = dict(await session.fetch("SELECT pool_id, claimed FROM demand ORDER BY pool_id"))
    finally:
        await session.close()
    superuser = await asyncpg.connect(url)
    try:
        await superuser.execute("VACUUM ANALYZE", timeout=120.0)
        await superuser.execute("CHECKPOINT", timeout=120.0)
    finally:
        await superuser.close()
    return claimed
