"""Schemas made from tables equal the migrated ones, and every kind of difference is found."""

from typing import Final

import pytest

from slipway_local.servers.postgres import EmbeddedPostgres
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
