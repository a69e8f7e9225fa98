"""Lease pools, leases, requests."""

from alembic import op

from slipway_common.migrate import execute, messaging

revision = "0001"
down_revision = None

TABLES = """
CREATE TABLE lease_pools (
    id text PRIMARY KEY,
    limit_units integer NOT NULL CHECK (limit_units >= 0),
    hold_seconds double precision NOT NULL CHECK (hold_seconds > 0),
    ttl_seconds double precision NOT NULL CHECK (ttl_seconds > 0),
    reserve_seconds double precision NOT NULL CHECK (reserve_seconds > 0),
    revision integer NOT NULL DEFAULT 1,
    retired boolean NOT NULL DEFAULT false,
    last_token bigint NOT NULL DEFAULT 0,   -- fencing token given out last
    dirty boolean NOT NULL DEFAULT true,    -- a fact arrived since the last decision
    wake_at timestamptz,                    -- when time alone makes a decision due
    decided_at timestamptz,
    why text NOT NULL DEFAULT ''            -- reasons of the last decision that changed something
);

CREATE TABLE requests (
    lease_pool_id text NOT NULL REFERENCES lease_pools,
    id text NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY,  -- order of arrival
    tenant text NOT NULL,
    operation text NOT NULL,
    asked_units integer NOT NULL CHECK (asked_units > 0),
    waiting_units integer NOT NULL CHECK (waiting_units BETWEEN 0 AND asked_units),
    asked_at timestamptz NOT NULL,
    last_asked_at timestamptz NOT NULL,
    queued_at timestamptz,                      -- when it was first told to wait
    traceparent text NOT NULL DEFAULT '',
    PRIMARY KEY (lease_pool_id, id)
);
CREATE INDEX requests_waiting ON requests (lease_pool_id, place) WHERE waiting_units > 0;
CREATE INDEX requests_done ON requests (lease_pool_id, last_asked_at) WHERE waiting_units = 0;

CREATE TABLE leases (
    id text PRIMARY KEY,
    lease_pool_id text NOT NULL REFERENCES lease_pools,
    request_id text NOT NULL,
    fencing_token bigint NOT NULL,
    granted_units integer NOT NULL CHECK (granted_units > 0),
    units integer NOT NULL CHECK (units BETWEEN 0 AND granted_units),  -- not given back yet
    state text NOT NULL CHECK (state IN ('reserved', 'confirmed', 'released', 'expired', 'lost')),
    granted_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    hold_until timestamptz NOT NULL,
    counted_until timestamptz,                  -- of a lost lease
    ended_at timestamptz,                       -- counted against the limit until this is set
    traceparent text NOT NULL DEFAULT '',
    UNIQUE (lease_pool_id, fencing_token)
);
CREATE INDEX leases_counted ON leases (lease_pool_id) WHERE ended_at IS NULL;
CREATE INDEX leases_ended ON leases (lease_pool_id, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX leases_granted ON leases (lease_pool_id, granted_at);
"""


def upgrade() -> None:
    messaging(op)
    execute(op, TABLES)
