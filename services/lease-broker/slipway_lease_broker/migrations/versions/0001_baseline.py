"""Baseline schema: lease pools, leases, requests, tenants, groups, gangs, slots and history."""

from alembic import op

from slipway_common.database.migrate import execute, messaging

revision = "0001"
down_revision = None

# Leases and requests have no foreign key to their pool: lease pools are archived, never deleted, and every writer of a
# lease or a request holds the lock on its pool's row, so the checks could not fail and would cost each write. There is
# no B-tree index on ended_at or granted_at either: leases are granted in the order of their fencing tokens, so that the
# index of the tokens finds the newest ones, and pruning and reports make do with a BRIN index.
TABLES = """
CREATE TABLE lease_pools (
    id text PRIMARY KEY,
    limit_units integer NOT NULL CHECK (limit_units >= 0),
    hold_seconds double precision NOT NULL CHECK (hold_seconds > 0),
    ttl_seconds double precision NOT NULL CHECK (ttl_seconds > 0),
    reserve_seconds double precision NOT NULL CHECK (reserve_seconds > 0),
    policy jsonb NOT NULL DEFAULT '{}',
    owner text NOT NULL DEFAULT '',             -- document that declares it; empty: imported or archived
    revision integer NOT NULL DEFAULT 1,
    archived boolean NOT NULL DEFAULT false,
    last_token bigint NOT NULL DEFAULT 0,       -- newest fencing token
    dirty boolean NOT NULL DEFAULT true,        -- a command arrived since the last decision
    wake_at timestamptz,                        -- when time alone makes a decision due
    decided_at timestamptz,
    reason text NOT NULL DEFAULT '',            -- reasons of the last decision that changed something
    limit_in_force integer,                     -- as of the last decision
    limit_reason text NOT NULL DEFAULT '',
    held jsonb NOT NULL DEFAULT '{}',           -- operation → cost of its counted leases
    held_units bigint NOT NULL DEFAULT 0,       -- units of counted leases
    waiting_units bigint NOT NULL DEFAULT 0,
    waiting_requests integer NOT NULL DEFAULT 0,
    counted_at timestamptz,                     -- idle units are accrued up to this time
    idle_unit_seconds double precision NOT NULL DEFAULT 0,  -- since the last decision, while requests waited
    last_granted_at timestamptz,
    verified_at timestamptz,                    -- when its counters were last compared with its rows
    paces jsonb NOT NULL DEFAULT '{}',          -- operation → until and interval_seconds of its pacing
    blocked_until timestamptz,                  -- a Retry-After: no counted start before this time
    incomplete_until timestamptz,                -- the database was restored: until then it may lack leases
    virtual_time double precision NOT NULL DEFAULT 0,
    adaptive jsonb,                             -- the adaptive limit and its times
    evidence jsonb NOT NULL DEFAULT '[]',       -- of throttling, received since the last decision
    throttle_reports jsonb NOT NULL DEFAULT '[]',  -- of the last reporters
    excess jsonb,                               -- of unleased units beyond what their reporter may count
    pinned_reason text,                         -- the declared limit holds until an operator unpins
    drained_reason text,                        -- the limit is 0 until an operator undrains
    derived_units integer,
    derived_until timestamptz,
    derived_alerted boolean NOT NULL DEFAULT false
);

CREATE TABLE requests (
    lease_pool_id text NOT NULL,
    id text NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY,  -- order of arrival
    tenant text NOT NULL,
    operation text NOT NULL,
    requested_units integer NOT NULL CHECK (requested_units > 0),
    waiting_units integer NOT NULL CHECK (waiting_units BETWEEN 0 AND requested_units),
    requested_at timestamptz NOT NULL,
    last_requested_at timestamptz NOT NULL,
    queued_at timestamptz,                      -- when LeaseQueued was published
    traceparent text NOT NULL DEFAULT '',
    priority integer NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 9),
    whole boolean NOT NULL DEFAULT false,       -- never granted in part
    hold_seconds double precision,              -- shorter than the pool's
    owner text NOT NULL,                        -- name of the token that requested it
    since timestamptz NOT NULL,                 -- start of its wait: less age credit, or when its group lets it start
    group_name text NOT NULL DEFAULT '',
    gang_id text,
    lapsed boolean NOT NULL DEFAULT false,      -- not repeated for too long: skipped until it is repeated
    over_kafka boolean NOT NULL DEFAULT false,  -- how it came: over Kafka, or over HTTP
    holder text NOT NULL DEFAULT '',            -- who asked for it last
    PRIMARY KEY (lease_pool_id, id)
);
CREATE INDEX requests_ended ON requests (last_requested_at) WHERE waiting_units = 0 OR lapsed;
CREATE INDEX requests_queue ON requests (lease_pool_id, operation, tenant, priority, group_name, since, place)
    WHERE waiting_units > 0 AND NOT lapsed;
CREATE INDEX requests_unannounced ON requests (lease_pool_id, place)
    WHERE waiting_units > 0 AND NOT lapsed AND queued_at IS NULL;
CREATE INDEX requests_stale ON requests (lease_pool_id, last_requested_at) WHERE waiting_units > 0 AND NOT lapsed;
CREATE INDEX requests_of_gang ON requests (gang_id, lease_pool_id) WHERE gang_id IS NOT NULL;

CREATE TABLE leases (
    id text PRIMARY KEY,
    lease_pool_id text NOT NULL,
    request_id text NOT NULL,
    fencing_token bigint NOT NULL,
    granted_units integer NOT NULL CHECK (granted_units > 0),
    units integer NOT NULL CHECK (units BETWEEN 0 AND granted_units),  -- not yet released
    state text NOT NULL CHECK (state IN ('reserved', 'confirmed', 'released', 'expired', 'lost')),
    granted_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    hold_until timestamptz NOT NULL,
    counted_until timestamptz,                  -- of a lost lease
    ended_at timestamptz,                       -- counted against the limit until this is set
    traceparent text NOT NULL DEFAULT '',
    tenant text NOT NULL DEFAULT '',
    operation text NOT NULL DEFAULT 'launch',
    weight integer NOT NULL DEFAULT 1,          -- cost of a unit at the time of the grant
    owner text NOT NULL,
    progress text,                              -- as last reported
    progress_until timestamptz,                 -- the lease ends here if its progress does not change
    waited_seconds double precision NOT NULL DEFAULT 0,
    mode text NOT NULL DEFAULT 'enforce',
    advised_wait_seconds double precision,      -- how long it would have waited under enforce
    reason text NOT NULL DEFAULT '',            -- of the grant, then of the end
    gang_id text,
    replaced boolean NOT NULL DEFAULT false,    -- a request replaced it: its age is inherited once
    reported_late boolean NOT NULL DEFAULT false,  -- its holder reported a result after the hold had ended
    extended_at timestamptz NOT NULL,           -- by its grant, or the last command that moved its deadlines
    over_kafka boolean NOT NULL DEFAULT false,  -- whether its holder sends its commands over Kafka, or over HTTP
    unleased_by text,                           -- cause of a start without a lease
    uncounted_units integer NOT NULL DEFAULT 0, -- of an unleased start, beyond what counts
    holders jsonb NOT NULL DEFAULT '{}',        -- by the name that each gave itself
    deadline timestamptz
        GENERATED ALWAYS AS (coalesce(counted_until, least(expires_at, hold_until, progress_until))) STORED,
    UNIQUE (lease_pool_id, fencing_token)
);
CREATE INDEX leases_due ON leases (lease_pool_id, deadline) WHERE ended_at IS NULL;
CREATE INDEX leases_of_request ON leases (lease_pool_id, request_id);
CREATE INDEX leases_ended ON leases (ended_at) WHERE ended_at IS NOT NULL;

-- Until when lease commands were received, per way in, and the downtimes before.
CREATE TABLE reception (
    way text PRIMARY KEY,                       -- a partition of the requests, or "http"
    received_until timestamptz NOT NULL,
    downtimes jsonb NOT NULL DEFAULT '[]'
);

CREATE TABLE tenants (
    lease_pool_id text NOT NULL REFERENCES lease_pools,
    tenant text NOT NULL,
    virtual_finish double precision NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,        -- in a row
    backoff_until timestamptz,
    held_back_until timestamptz,                -- by what it reported itself
    held_back_reason text NOT NULL DEFAULT '',
    owner text NOT NULL DEFAULT '',             -- token that named it, if it is not that token's own
    PRIMARY KEY (lease_pool_id, tenant)
);

CREATE TABLE groups (
    lease_pool_id text NOT NULL REFERENCES lease_pools,
    name text NOT NULL,
    size integer NOT NULL CHECK (size > 0),
    spread_seconds double precision NOT NULL,
    members integer NOT NULL DEFAULT 0,         -- that have arrived
    first_at timestamptz NOT NULL,
    last_start_at timestamptz,
    PRIMARY KEY (lease_pool_id, name)
);

CREATE TABLE gangs (
    id text PRIMARY KEY,
    owner text NOT NULL,
    size integer NOT NULL CHECK (size > 0),     -- number of lease pools that it requests
    requested_at timestamptz NOT NULL,
    last_requested_at timestamptz NOT NULL,
    turn_at timestamptz,                        -- when it could first have started in one of its pools
    done_at timestamptz                         -- started or given up
);
CREATE INDEX gangs_ready ON gangs (requested_at) WHERE turn_at IS NOT NULL AND done_at IS NULL;

CREATE TABLE slots (
    name text PRIMARY KEY,
    lease_pool_id text NOT NULL REFERENCES lease_pools,
    state text NOT NULL,
    owner text NOT NULL DEFAULT '',             -- empty: available in its state
    updated_at timestamptz NOT NULL,            -- last change, or last update by its owner
    userdata jsonb NOT NULL DEFAULT '{}',
    request_id text,                            -- request that its owner acquired it with
    acquired_by text NOT NULL DEFAULT '',       -- token that its owner acquired it with
    lease_id text,                              -- lease that it is held under; no reference, since leases are pruned
    fencing_token bigint,                       -- of the last lease
    removed_at timestamptz                      -- when it left the declared list while owned: it goes with its owner
);
CREATE INDEX slots_removed ON slots (lease_pool_id) WHERE removed_at IS NOT NULL;
CREATE INDEX slots_available ON slots (lease_pool_id, state, updated_at, name) WHERE owner = '';
CREATE INDEX slots_owned ON slots (lease_pool_id, owner) WHERE owner <> '';

CREATE TABLE slot_requests (
    lease_pool_id text NOT NULL REFERENCES lease_pools,
    state text NOT NULL,                        -- state that the slot is requested in
    owner text NOT NULL,
    id text NOT NULL,
    requested_by text NOT NULL,                 -- token that requests it
    place bigint GENERATED ALWAYS AS IDENTITY,  -- order of arrival
    slot_count integer NOT NULL CHECK (slot_count > 0),
    lease_request_id text NOT NULL,             -- its lease request, once a slot was free
    last_requested_at timestamptz NOT NULL,
    PRIMARY KEY (lease_pool_id, state, owner, id)
);

CREATE TABLE history (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lease_pool_id text NOT NULL,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    lease_id text,
    request_id text,
    units integer,
    reason text NOT NULL,
    actor text NOT NULL DEFAULT ''              -- caller or service; empty: time, or the broker's own decision
);
CREATE INDEX history_of_pool ON history (lease_pool_id, id);
CREATE INDEX history_of_lease ON history (lease_id, id) WHERE lease_id IS NOT NULL;
"""


def upgrade() -> None:
    messaging(op)
    execute(op, TABLES)
