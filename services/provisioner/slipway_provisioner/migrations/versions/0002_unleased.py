"""Starts without a lease while the lease-broker is silent: what was granted when, and the pace that is left."""

from alembic import op

from slipway_common.migrate import execute

revision = "0002"
down_revision = "0001"

TABLES = """
ALTER TABLE lease
    ADD granted_units integer NOT NULL DEFAULT 0,   -- 0: admitted without the broker, or before this was kept
    ADD granted_at timestamptz NOT NULL DEFAULT slipway_clock(),
    DROP CONSTRAINT lease_state_check,
    ADD CONSTRAINT lease_state_check CHECK (state IN ('reserved', 'confirmed', 'unleased', 'ended'));
CREATE INDEX lease_granted ON lease (lease_pool_id, granted_at) WHERE granted_units > 0;

CREATE TABLE unleased_pace (
    lease_pool_id text PRIMARY KEY,
    next_at timestamptz                             -- before it nothing starts without a lease
);
"""


def upgrade() -> None:
    execute(op, TABLES)
