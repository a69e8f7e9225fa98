"""Keys in the database equal those of events, and the longest values fit into every index."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import product
from random import Random
from string import ascii_letters, digits
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec
import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    Cast,
    Column,
    Date,
    DateTime,
    Double,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Text,
    UniqueConstraint,
    Uuid,
)

from slipway_api.events.lease import LeaseGroup
from slipway_api.events.scopes import (
    Key,
    capacity_key,
    credential_key,
    image_key,
    lifecycle_of,
    quota_key,
    subnet_key,
)
from slipway_api.limits import KEY, NAME, WORD
from slipway_common.base.ids import new_id
from slipway_common.database.percent import PERCENT_ENCODED
from slipway_common.database.sql import DIALECT
from slipway_common.declaration.fields import ID_CHARACTERS_MAX
from slipway_lease_broker.domain.commands import UNITS_MAX
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.spread import group_key
from slipway_lease_broker.store import tables as broker
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.store import tables as provisioner
from slipway_provisioner.store.tables import launch_config
from slipway_weight_calculator.store import tables as calculator

TYPES: Final = ("m5.large", "m5", "u-6tb1.56xlarge.metal", ".large", "", "é/ü.1")
KINDS: Final = (
    # lifecycle, capacity and family as declared
    (None, "", ""),
    ("spot", "", "standard-spot"),
    ("spots", "", ""),
    (7, "sim-1/z%20/m5.large/spot", "standard"),
)


async def test_generated_keys_are_those_of_the_calculator(postgres: EmbeddedPostgres) -> None:
    """The provisioner's keys are generated columns, the weight-calculator's come from `events/scopes`."""
    generated = {field.name: str(field.computed.sqltext) for field in launch_config.c if field.computed is not None}
    connection = await asyncpg.connect(await postgres.create_database(new_id()))
    try:
        await connection.execute(PERCENT_ENCODED)
        for instance_type, (lifecycle, capacity, family) in product(TYPES, KINDS):
            values = {
                "image_revision": "linux/1",
                "account_id": "ci/a",
                "region": "sim-1",
                "zone": "zone%a",
                "instance_type": instance_type,
                "settings": msgspec.json.encode({"lifecycle": lifecycle}).decode(),
                "capacity": capacity,
                "quota_family": family,
                "subnet": "" if family else "subnet/%",
                "image": "" if family else "aws/ami%1",
            }
            types = {name: "jsonb" if name == "settings" else "text" for name in values}
            given = ", ".join(f"${place}::{types[name]} AS {name}" for place, name in enumerate(values, 1))
            query = f"SELECT {', '.join(generated.values())} FROM (SELECT {given}) AS launch_config"
            keys = dict(zip(generated, await connection.fetchrow(query, *values.values()), strict=True))
            assert keys == {
                "image_key": image_key("linux/1" if family else "aws/ami%1").text,
                "quota_key": quota_key("ci/a", "sim-1", instance_type, family).text,
                "credential_key": credential_key("ci/a").text,
                "capacity_key": Key("capacity", capacity).text
                if capacity
                else capacity_key(
                    "ci/a", "sim-1", "zone%a", instance_type, lifecycle_of({"lifecycle": lifecycle})
                ).text,
                "subnet_key": "" if family else subnet_key("ci/a", "sim-1", "subnet/%").text,
            }
    finally:
        await connection.close()


# Bytes of texts in indexes that are no names, by column or by table and column.
BYTES: Final = {
    "stage": WORD.bytes,
    "forgiven.pool_id": ID_CHARACTERS_MAX,
    "waiting_pool.pool_id": ID_CHARACTERS_MAX,
    "subject": KEY.bytes,
    "topic": 200,
    "key": KEY.bytes + len("config/"),  # of what has health, a signal, an alert or a boot
    "image_key": KEY.bytes,
    "quota_key": KEY.bytes,
    "credential_key": KEY.bytes,
    "capacity_key": KEY.bytes,
    "subnet_key": KEY.bytes,
    "group_name": NAME.bytes + len(group_key(LeaseGroup(name="", size=UNITS_MAX, spread_seconds=86_399.123), Sender())),
}
VALUES: Final[dict[type[Any], Any]] = {
    BigInteger: 2**63 - 1,
    Integer: 2**31 - 1,
    Double: 1e300,
    Boolean: True,
    Uuid: str(UUID(int=2**128 - 1)),
    DateTime: datetime(2026, 1, 1, tzinfo=UTC),
    Date: date(2026, 1, 1),
}


def _indexed(tables: MetaData) -> Iterator[tuple[str, list[Column[Any]]]]:
    """B-tree indexes of a schema, those of its constraints too, but for those on numbers in a document."""
    for table in tables.tables.values():
        for index in table.indexes:
            is_number = any(isinstance(column, Cast) for column in index.expressions)
            if index.dialect_kwargs.get("postgresql_using") != "brin" and not is_number:
                yield str(index.name), list(index.columns)
        for constraint in table.constraints:
            if isinstance(constraint, PrimaryKeyConstraint | UniqueConstraint) and constraint.columns:
                yield f"{table.name} {type(constraint).__name__}", list(constraint.columns)


def _longest(column: Column[Any], rng: Random) -> Any:
    """The longest value of a column. Random, because PostgreSQL compresses what is not."""
    if isinstance(column.type, Text):
        size = BYTES.get(f"{column.table.name}.{column.name}", BYTES.get(column.name, NAME.bytes))
        return "".join(rng.choices(ascii_letters + digits, k=size))
    return next(value for kind, value in VALUES.items() if isinstance(column.type, kind))


@pytest.mark.parametrize("tables", [broker.metadata, calculator.metadata, provisioner.metadata])
async def test_texts_within_their_limits_fit_into_every_index(postgres: EmbeddedPostgres, tables: MetaData) -> None:
    rng, found = Random(1), list(_indexed(tables))
    refused: list[str] = []
    connection = await asyncpg.connect(await postgres.create_database(new_id()))
    try:
        for place, (name, columns) in enumerate(found):
            types = ", ".join(f'"{column.name}" {column.type.compile(dialect=DIALECT)}' for column in columns)
            await connection.execute(f"CREATE TABLE t{place} ({types})")
            names = ", ".join(f'"{column.name}"' for column in columns)
            await connection.execute(f"CREATE INDEX ON t{place} ({names})")
            placeholders = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
            insert = f"INSERT INTO t{place} VALUES ({placeholders})"
            try:
                await connection.execute(insert, *(_longest(column, rng) for column in columns))
            except asyncpg.ProgramLimitExceededError as error:
                refused.append(f"{name}: {error}")
    finally:
        await connection.close()
    assert refused == []
    assert len(found) > 10
