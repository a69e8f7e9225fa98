"""Tables of the weight-calculator. The baseline of the migrations is generated from them."""

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Double, Identity, Index, MetaData, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

from slipway_common.database.tables import leader, messaging, now

metadata = MetaData()
messaging(metadata)
leader(metadata)

OFTEN_UPDATED = {"fillfactor": 50}


def bodies(name: str, **options: Any) -> Table:
    """Table of values by key, as JSON text encoded by the domain, so that equal values have equal bytes."""
    return Table(name, metadata, Column("key", Text, primary_key=True), Column("body", Text, nullable=False), **options)


config = bodies("config")  # declared configs, by id
health = bodies("health", postgresql_with=OFTEN_UPDATED)  # rows, by the text of their key
boot = bodies("boot")  # boots in progress, by worker id
signal = bodies("signal")  # live signals, by their key
open_alert = bodies("open_alert")  # open alerts, by deduplication key

refused_signal = Table(
    "refused_signal",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", Double, nullable=False),
    Column("reason", Text, nullable=False),
    Column("body", Text, nullable=False),
)

weight = Table(
    "weight",
    metadata,
    Column("id", Text, primary_key=True),  # of a revision
    Column("name", Text, nullable=False),
    Column("pool_id", Text, nullable=False),
    Column("record", Text, nullable=False),  # as published
    Column("at", Double, nullable=False),  # of publication, in seconds since the epoch
    Column("archived", Boolean, nullable=False),
    postgresql_with=OFTEN_UPDATED,
)
Index("weight_pool", weight.c.pool_id)

# One row per turn that changed something. Ranges are [topic, partition, from, to]: `taken` from the log; of these
# `left_out` had no effect (duplicates, unknown types) and `dead_lettered` became dead letters. `settled` are dead
# letters of earlier turns that were folded.
journal = Table(
    "journal",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
    Column("until", Double, nullable=False),  # timers were fired up to this time
    Column("taken", JSONB, nullable=False),
    Column("left_out", JSONB, nullable=False),
    Column("dead_lettered", JSONB, nullable=False),
    Column("settled", JSONB, nullable=False),
    now("written_at"),
)
Index("journal_written_at", journal.c.written_at)
