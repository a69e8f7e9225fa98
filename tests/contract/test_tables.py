"""Schemas made from tables equal the migrated ones, and every kind of difference is found."""

from typing import Final

import asyncpg
import pytest

from slipway_common.base.ids import new_id
from slipway_common.events.scopes import credential_key, image_key, quota_key
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.store.tables import PERCENT_ENCODED, launch_config
from tests.tools.tables import SERVICES, differences, made, migrated

CHANGES: Final = """
ALTER TABLE outbox ADD COLUMN colour text;
ALTER TABLE gap ADD CONSTRAINT positive CHECK (partition >= 0);
ALTER TABLE dead_letter ALTER COLUMN reason SET DEFAULT 'none';
CREATE INDEX gap_at ON gap (at);
CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER forgets BEFORE INSERT ON gap FOR EACH ROW EXECUTE FUNCTION forget();
"""


@pytest.mark.parametrize("service", SERVICES)
async def test_the_tables_are_the_migrated_schema(postgres: EmbeddedPostgres, service: str) -> None:
    assert differences(await migrated(postgres, service), await made(postgres, service)) == []


async def test_every_difference_is_named(postgres: EmbeddedPostgres) -> None:
    """A column, a check, a default, an index, a function and a trigger, each on either side only."""
    service = SERVICES[0]
    same, more = await made(postgres, service), await migrated(postgres, service, CHANGES)
    expected = [
        "FUNCTION forget(): only in the {side}",
        "INDEX gap_at: only in the {side}",
        "TABLE dead_letter: only in the {side}: reason text DEFAULT 'none'::text NOT NULL",
        "TABLE gap: only in the {side}: CONSTRAINT positive CHECK ((partition >= 0))",
        "TABLE outbox: only in the {side}: colour text",
        "TRIGGER gap forgets: only in the {side}",
    ]
    found = differences(more, same)
    assert [line.format(side="migrations") for line in expected] == [line for line in found if "migrations" in line]
    swapped = differences(same, more)
    assert [line.format(side="tables") for line in expected] == [line for line in swapped if "in the tables" in line]


@pytest.mark.parametrize("instance_type", ["m5.large", "m5", "u-6tb1.56xlarge.metal", ".large", "", "é/ü.1"])
async def test_generated_keys_are_those_of_the_calculator(postgres: EmbeddedPostgres, instance_type: str) -> None:
    """The provisioner's keys are generated columns, the weight-calculator's come from `events/scopes`."""
    values = {"image_revision": "linux/1", "account_id": "ci/a", "region": "sim-1", "instance_type": instance_type}
    generated = {field.name: str(field.computed.sqltext) for field in launch_config.c if field.computed is not None}
    given = ", ".join(f"${place}::text AS {name}" for place, name in enumerate(values, 1))
    connection = await asyncpg.connect(await postgres.create_database(new_id()))
    try:
        await connection.execute(PERCENT_ENCODED)
        query = f"SELECT {', '.join(generated.values())} FROM (SELECT {given}) AS launch_config"
        keys = dict(zip(generated, await connection.fetchrow(query, *values.values()), strict=True))
    finally:
        await connection.close()
    assert keys == {
        "image_key": image_key("linux/1").text,
        "quota_key": quota_key("ci/a", "sim-1", instance_type).text,
        "credential_key": credential_key("ci/a").text,
    }
