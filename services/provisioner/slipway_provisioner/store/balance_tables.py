"""Table of the balance of fleet and demand, as the plans of each pool have seen it."""

from sqlalchemy import Boolean, Column, Index, MetaData, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

from slipway_common.database.tables import TIME
from slipway_provisioner.store.columns import EMPTY_OBJECT, FALSE, required


def balance_table(metadata: MetaData) -> Table:
    """Add the table. `surplus`: registered workers beyond those wanted, by since when every plan has seen them.
    `missing_since`: since when registered workers have been missing, in a pool that may launch, and none has
    registered; `starved`: an alert says so. `short`: the last plan launched fewer workers than the
    pool needs, for a safety limit or since a launch config had no headroom of its own."""
    pool_balance = Table(
        "pool_balance",
        metadata,
        Column("pool_id", Text, primary_key=True),
        required("surplus", JSONB, server_default=EMPTY_OBJECT),
        Column("missing_since", TIME),
        required("starved", Boolean, server_default=FALSE),
        required("short", Boolean, server_default=FALSE),
    )
    missing_since, starved = pool_balance.c.missing_since, pool_balance.c.starved
    Index("pool_balance_missing", missing_since, postgresql_where=missing_since.is_not(None))
    Index("pool_balance_starved", pool_balance.c.pool_id, postgresql_where=starved)
    return pool_balance
