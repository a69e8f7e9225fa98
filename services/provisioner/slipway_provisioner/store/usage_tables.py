"""Tables of what counts towards windows and fleets: outcomes of stages, shared windows, and the counters of both.

The counters are append-only: triggers insert what a change adds and subtracts, in its transaction, and lock no row that
others need. A sum over the rows of a key is what counts; folding replaces these rows by their sum.
"""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    Column,
    Computed,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

from slipway_common.database.tables import TIME
from slipway_provisioner.store.columns import ZERO, empty_text, required
from slipway_provisioner.store.functions import COUNTED


def usage_tables(metadata: MetaData) -> tuple[Table, ...]:
    """Add the tables, in the order in which they are returned: outcomes, shared windows, the counters of configs and of
    shared windows, the pools that wait for these, and the counters of spend."""
    # Outcomes of stages over a config's life. Successes are counted for launches only, once per call: a row that each
    # registration and first claim locks would serialize them. `folded`: failures in the newest weight record.
    # `written_off`: failures that will never be folded into a weight. `unfolded_since`: time of the first consecutive
    # sweep that found unfolded failures; reset by a new failure. `keys`: those of the shared windows that they fill.
    outcomes = Table(
        "launch_config_outcomes",
        metadata,
        Column("launch_config_id", Text, ForeignKey("launch_config.id")),
        Column("stage", Text),
        required("failures", BigInteger, server_default=ZERO),
        required("successes", BigInteger, server_default=ZERO),
        required("folded", BigInteger, server_default=ZERO),
        required("written_off", BigInteger, server_default=ZERO),
        required("unfolded", BigInteger, Computed("greatest(0, failures - written_off - folded)", persisted=True)),
        Column("unfolded_since", TIME),
        required("keys", ARRAY(Text), server_default=text("'{}'")),
        PrimaryKeyConstraint("launch_config_id", "stage"),
    )
    Index("launch_config_outcomes_unfolded", outcomes.c.launch_config_id, postgresql_where=outcomes.c.unfolded > 0)
    # Newest state of each share in the weight records, without a `size` before the first. A planner that launches on a
    # key locks it, since other pools share it.
    shared_window = Table(
        "shared_window",
        metadata,
        Column("key", Text),
        Column("stage", Text),
        required("version", BigInteger, server_default=ZERO),
        Column("size", Integer),
        required("state", Text, CheckConstraint("state IN ('healthy', 'tripped')"), server_default=text("'healthy'")),
        required("unconfirmed", Integer, server_default=ZERO),
        empty_text("reason"),
        PrimaryKeyConstraint("key", "stage"),
    )
    # Live workers of a config, and its starts in flight per stage.
    config_usage = Table(
        "config_usage",
        metadata,
        required("pool_id", Text),
        required("launch_config_id", Text),
        *(required(name, Integer, server_default=ZERO) for name in COUNTED),
    )
    Index("config_usage_config", config_usage.c.pool_id, config_usage.c.launch_config_id)
    # Starts in flight of a shared window, those of earlier stages included, and failures not yet folded into a weight.
    shared_usage = Table(
        "shared_usage",
        metadata,
        required("key", Text),
        required("stage", Text),
        required("in_flight", Integer, server_default=ZERO),
        required("unfolded", Integer, server_default=ZERO),
    )
    Index("shared_usage_key", shared_usage.c.key)
    # Pools whose last plan a shared window has cut: they need `units` more, and take their turns by `waiting_since`.
    waiting_pool = Table(
        "waiting_pool",
        metadata,
        Column("pool_id", Text),
        Column("key", Text),
        Column("stage", Text),
        required("units", Integer),
        required("waiting_since", TIME),
        PrimaryKeyConstraint("pool_id", "key", "stage"),
    )
    waiting = waiting_pool.c
    Index("waiting_pool_turn", waiting.key, waiting.stage, waiting.waiting_since, waiting.pool_id)
    # Machines of an account, of one of its pools or of all (''), by their price and the period in which they began or
    # ended: those that may run, and those that have run, with the seconds from the epoch to their ends, less those to
    # their begins.
    spend_usage = Table(
        "spend_usage",
        metadata,
        required("account_id", Text),
        required("pool_id", Text),
        Column("price", Numeric),
        required("at", TIME),
        required("live", Integer),
        required("began", Integer),
        required("ended", Integer),
        required("seconds", Numeric),
    )
    Index("spend_usage_scope", spend_usage.c.pool_id, spend_usage.c.account_id, spend_usage.c.at)
    Index("spend_usage_ended", spend_usage.c.at, postgresql_where=spend_usage.c.live == 0)
    return outcomes, shared_window, config_usage, shared_usage, waiting_pool, spend_usage
