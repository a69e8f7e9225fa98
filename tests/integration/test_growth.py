"""The day of `make growth`, whose months take longer: it writes every table that has a rule of retention."""

import asyncpg
import pytest

from bench.growth import copies, coverage, day
from bench.growth.__main__ import Growth
from slipway_common.database.retention import Bounded
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.simulation.deployment import deployment_on
from tests.simulation.invariants import MAX_CAPACITY


async def test_a_day_writes_every_table_with_a_rule(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = day.scenario(1)
    async with deployment_on(
        postgres, monkeypatch, 1, scenario, max_capacity=MAX_CAPACITY, honours_tokens=True
    ) as deployment:
        deployment.is_calm = True
        db = await asyncpg.connect(postgres.url(deployment.name))
        try:
            await copies.session(db)
            growth = Growth(deployment, db, per_day=1)
            await growth.write_day()
        finally:
            await db.close()
    rules = {name for name, rule in coverage.rules().items() if not isinstance(rule, Bounded)}
    assert {name for name in rules if not growth.written.get(name)} == set()
