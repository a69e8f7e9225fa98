"""Policy of lease pools, their live state and counters; tenants, groups, gangs; queues by operation, tenant, priority
and group; deadlines that an index finds; history."""

from alembic import op

from slipway_common.migrate import execute

revision = "0002"
down_revision = "0001"

TABLES = """
ALTER TABLE lease_pools
    ADD policy jsonb NOT NULL DEFAULT '{"pacing": "off"}',  -- those declared before pacing existed go on unpaced
    ADD limit_in_force integer,                     -- as of the last decision
    ADD limit_reason text NOT NULL DEFAULT '',
    ADD held jsonb NOT NULL DEFAULT '{}',           -- operation → cost of its counted leases
    ADD held_units bigint NOT NULL DEFAULT 0,       -- units of counted leases
    ADD waiting_units bigint NOT NULL DEFAULT 0,
    ADD waiting_requests integer NOT NULL DEFAULT 0,
    ADD counted_at timestamptz,                     -- up to which idle units are reckoned
    ADD idle_unit_seconds double precision NOT NULL DEFAULT 0,  -- since the last decision, while somebody waited
    ADD last_granted_at timestamptz,
    ADD proved_at timestamptz,                      -- when its counters were compared with its rows
    ADD paced_until timestamptz,                    -- theoretical arrival time of the next start
    ADD blocked_until timestamptz,                  -- a Retry-After: nothing paced starts before
    ADD virtual_time double precision NOT NULL DEFAULT 0,
    ADD paced_interval_seconds double precision,    -- that it was reckoned with
    ADD adaptive jsonb,                             -- the adaptive limit and its times
    ADD evidence jsonb NOT NULL DEFAULT '[]',       -- of throttling, told since the last decision
    ADD pinned_reason text,                         -- the declared limit holds until a person unpins
    ADD drained_reason text,                        -- the limit is 0 until a person undrains
    ADD derived_units integer, ADD derived_until timestamptz,
    ADD derived_alerted boolean NOT NULL DEFAULT false;
ALTER TABLE lease_pools ALTER policy SET DEFAULT '{}';

ALTER TABLE requests
    ADD priority integer NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 9),
    ADD whole boolean NOT NULL DEFAULT false,       -- never granted in part
    ADD hold_seconds double precision,              -- shorter than the pool's
    ADD owner text NOT NULL DEFAULT '',             -- name of the token that asked
    ADD since timestamptz,                          -- when its wait began: less age credit, or when its group lets it
    ADD group_name text NOT NULL DEFAULT '',
    ADD gang_id text,
    ADD lapsed boolean NOT NULL DEFAULT false;      -- its asker fell silent: passed over until it asks again
UPDATE requests SET since = asked_at;
ALTER TABLE requests ALTER since SET NOT NULL;
DROP INDEX requests_waiting;
CREATE INDEX requests_queue ON requests (lease_pool_id, operation, tenant, priority, group_name, since, place)
    WHERE waiting_units > 0 AND NOT lapsed;
CREATE INDEX requests_untold ON requests (lease_pool_id, place)
    WHERE waiting_units > 0 AND NOT lapsed AND queued_at IS NULL;
CREATE INDEX requests_silent ON requests (lease_pool_id, last_asked_at) WHERE waiting_units > 0 AND NOT lapsed;

ALTER TABLE leases
    ADD tenant text NOT NULL DEFAULT '', ADD operation text NOT NULL DEFAULT 'launch',
    ADD weight integer NOT NULL DEFAULT 1,          -- cost of a unit, as at the grant
    ADD owner text NOT NULL DEFAULT '',
    ADD progress text,                              -- as told last
    ADD progress_until timestamptz,                 -- ends here if its progress does not change
    ADD waited_seconds double precision NOT NULL DEFAULT 0,
    ADD mode text NOT NULL DEFAULT 'enforce',
    ADD advised_wait_seconds double precision,      -- what it would have waited under enforce
    ADD reason text NOT NULL DEFAULT '',            -- of the grant, then of the end
    ADD gang_id text;
UPDATE leases AS l SET tenant = r.tenant, operation = r.operation
    FROM requests AS r WHERE r.lease_pool_id = l.lease_pool_id AND r.id = l.request_id;
ALTER TABLE leases ADD deadline timestamptz
    GENERATED ALWAYS AS (coalesce(counted_until, least(expires_at, hold_until, progress_until))) STORED;
DROP INDEX leases_counted;
CREATE INDEX leases_due ON leases (lease_pool_id, deadline) WHERE ended_at IS NULL;
CREATE INDEX leases_of_request ON leases (lease_pool_id, request_id);

CREATE TABLE tenants (
    lease_pool_id text NOT NULL REFERENCES lease_pools,
    tenant text NOT NULL,
    virtual_finish double precision NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,            -- in a row
    backoff_until timestamptz,
    PRIMARY KEY (lease_pool_id, tenant)
);
CREATE TABLE groups (
    lease_pool_id text NOT NULL REFERENCES lease_pools,
    name text NOT NULL,
    size integer NOT NULL CHECK (size > 0),
    spread_seconds double precision NOT NULL,
    members integer NOT NULL DEFAULT 0,             -- that have asked
    first_at timestamptz NOT NULL,
    last_start_at timestamptz,
    PRIMARY KEY (lease_pool_id, name)
);
CREATE TABLE gangs (
    id text PRIMARY KEY,
    owner text NOT NULL,
    size integer NOT NULL CHECK (size > 0),         -- lease pools that it asks
    asked_at timestamptz NOT NULL,
    last_asked_at timestamptz NOT NULL,
    turn_at timestamptz,                            -- when it first might have started in one of them
    done_at timestamptz                             -- started, or given up
);
CREATE INDEX gangs_ready ON gangs (asked_at) WHERE turn_at IS NOT NULL AND done_at IS NULL;
CREATE INDEX requests_of_gang ON requests (gang_id, lease_pool_id) WHERE gang_id IS NOT NULL;
CREATE TABLE history (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lease_pool_id text NOT NULL,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    lease_id text, request_id text,
    units integer,
    reason text NOT NULL,
    actor text NOT NULL DEFAULT ''                  -- who asked for it; empty: time, or the broker's own decision
);
CREATE INDEX history_of_pool ON history (lease_pool_id, id);
CREATE INDEX history_of_lease ON history (lease_id, id) WHERE lease_id IS NOT NULL;
CREATE INDEX history_at ON history USING brin (at);

UPDATE lease_pools AS p SET
    held = coalesce((SELECT jsonb_object_agg(operation, cost) FROM (SELECT operation, sum(units * weight) AS cost
        FROM leases WHERE lease_pool_id = p.id AND ended_at IS NULL GROUP BY operation) AS counted), '{}'),
    held_units = coalesce((SELECT sum(units) FROM leases WHERE lease_pool_id = p.id AND ended_at IS NULL), 0),
    waiting_units = coalesce((SELECT sum(waiting_units) FROM requests WHERE lease_pool_id = p.id), 0),
    waiting_requests = (SELECT count(*) FROM requests WHERE lease_pool_id = p.id AND waiting_units > 0);
"""


def upgrade() -> None:
    execute(op, TABLES)
