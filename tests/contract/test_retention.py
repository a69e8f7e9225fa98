"""A rule of retention, or a reason to need none, for every table of the migrated schemas."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from slipway_common.base.ids import new_id
from slipway_common.database import migrate
from slipway_common.database.postgres import session
from slipway_common.database.retention import CHUNK_ROWS, PRUNE_LOOP, Retention, Rule
from slipway_common.messaging.retention import RETENTION
from slipway_lease_broker.settings import Settings as BrokerSettings
from slipway_lease_broker.store.retention import RETENTION as LEASE_BROKER
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.settings import Settings as ProvisionerSettings
from slipway_provisioner.store.retention import RETENTION as PROVISIONER
from slipway_weight_calculator.settings import Settings as CalculatorSettings
from slipway_weight_calculator.store.retention import RETENTION as WEIGHT_CALCULATOR

OF: Final[Mapping[str, tuple[Retention, type[Any]]]] = {
    "lease-broker": (LEASE_BROKER, BrokerSettings),
    "provisioner": (PROVISIONER, ProvisionerSettings),
    "weight-calculator": (WEIGHT_CALCULATOR, CalculatorSettings),
}
TABLES: Final = """
SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = current_schema()::regnamespace"""
CHUNK_MAX: Final = 5_000


@pytest.mark.parametrize("service", OF)
async def test_no_table_is_without_a_rule_or_a_reason(postgres: EmbeddedPostgres, service: str) -> None:
    url = await postgres.create_database(new_id())
    await migrate.upgrade(url, service)
    connection = await session(url, service)
    try:
        tables = {row["relname"] for row in await connection.fetch(TABLES)}
    finally:
        await connection.close()
    listed = [row.table for row in (*RETENTION, *OF[service][0])]
    assert sorted(listed) == sorted(tables)


@pytest.mark.parametrize("service", OF)
def test_rules_delete_chunks_of_what_their_settings_say(service: str) -> None:
    """No statement deletes more than 5,000 rows, and the days in the table are the defaults of the settings."""
    retention, settings = OF[service]
    rules = [row for row in (*RETENTION, *retention) if isinstance(row, Rule)]
    assert CHUNK_ROWS <= CHUNK_MAX
    for rule in rules:
        assert (rule.delete is not None) == (rule.loop == PRUNE_LOOP), rule.table
        if rule.delete is not None:
            assert f"LIMIT {CHUNK_ROWS}" in rule.delete.text, rule.table
        if rule.setting:
            assert settings.model_fields[rule.setting].default == rule.days, rule.table
        assert {*rule.used_by} <= {other.table for other in rules if other.delete is not None}, rule.table
