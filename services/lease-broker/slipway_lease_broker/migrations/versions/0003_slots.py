"""Named slots of lease pools, and who waits for one."""

from alembic import op

from slipway_common.migrate import execute

revision = "0003"
down_revision = "0002"

TABLES = """
CREATE TABLE slots (
    name text PRIMARY KEY,
    lease_pool_id text NOT NULL REFERENCES lease_pools,
    state text NOT NULL,
    owner text NOT NULL DEFAULT '',                 -- empty: available in its state
    updated_at timestamptz NOT NULL,                -- last change, or sign of life of its owner
    userdata jsonb NOT NULL DEFAULT '{}',
    request_id text,                                -- that its owner acquired it with
    lease_id text,                                  -- that it is held under; no reference, since leases are forgotten
    fencing_token bigint                            -- of the last lease
);
CREATE INDEX slots_available ON slots (lease_pool_id, state, updated_at, name) WHERE owner = '';
CREATE INDEX slots_owned ON slots (lease_pool_id, owner) WHERE owner <> '';

CREATE TABLE slot_requests (
    lease_pool_id text NOT NULL REFERENCES lease_pools,
    state text NOT NULL,                            -- that the slot is wanted in
    owner text NOT NULL,
    id text NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY,      -- order of arrival
    number integer NOT NULL CHECK (number > 0),     -- of slots
    ledger_id text NOT NULL,                        -- its request for a lease, once a slot was free
    last_asked_at timestamptz NOT NULL,
    PRIMARY KEY (lease_pool_id, state, owner, id)
);
"""


def upgrade() -> None:
    execute(op, TABLES)
