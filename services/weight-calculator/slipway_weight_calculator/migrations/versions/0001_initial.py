"""Launch configs with their health."""

from alembic import op

from slipway_common.migrate import execute, messaging

revision = "0001"
down_revision = None

TABLES = """
CREATE TABLE launch_config (
    id text PRIMARY KEY,
    pool_id text NOT NULL,
    zone text NOT NULL DEFAULT '',
    base_weight double precision NOT NULL DEFAULT 1,
    price_factor double precision NOT NULL DEFAULT 1,
    state text NOT NULL DEFAULT 'active',
    revision bigint NOT NULL DEFAULT 0,         -- 0: known from outcomes only
    health jsonb NOT NULL DEFAULT '{}',         -- the whole state; the two columns below repeat parts for queries
    closed boolean NOT NULL DEFAULT false,
    next_probe_at timestamptz,
    unpublished boolean NOT NULL DEFAULT true,  -- changed since the publish loop looked
    published jsonb,                            -- the record that others have; NULL: none, or a tombstone
    published_at timestamptz,
    looked_at timestamptz,
    traceparent text NOT NULL DEFAULT ''        -- of the last outcome: the record that follows goes on in its trace
) WITH (fillfactor = 70);
CREATE INDEX launch_config_unpublished ON launch_config (id) WHERE unpublished;
CREATE INDEX launch_config_looked_at ON launch_config (looked_at) WHERE NOT unpublished;
CREATE INDEX launch_config_pool ON launch_config (pool_id);
CREATE INDEX launch_config_closed ON launch_config (pool_id) WHERE closed;
"""


def upgrade() -> None:
    messaging(op)
    execute(op, TABLES)
