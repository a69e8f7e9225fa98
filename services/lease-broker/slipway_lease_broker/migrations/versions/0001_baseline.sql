-- Generated from store/tables.py by `make baseline`; do not edit.
CREATE FUNCTION slipway_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';
CREATE FUNCTION slipway_server() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws('/', extract(epoch FROM pg_postmaster_start_time()), d.oid, to_regclass('incarnation')::oid)
    FROM pg_database d WHERE d.datname = current_database()
$$;
CREATE TABLE audit (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    by TEXT NOT NULL,
    origin TEXT NOT NULL,
    action TEXT NOT NULL,
    reason TEXT NOT NULL,
    kind TEXT NOT NULL,
    subject_id TEXT NOT NULL,
    result TEXT NOT NULL,
    before JSONB,
    after JSONB,
    PRIMARY KEY (id)
);
CREATE INDEX audit_subject ON audit (subject_id, id DESC);
CREATE TABLE alert (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    dedup_key TEXT NOT NULL,
    kind TEXT NOT NULL,
    subject_kind TEXT NOT NULL,
    subject_id TEXT NOT NULL,
    severity TEXT NOT NULL,
    body TEXT NOT NULL,
    raised_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    revision INTEGER DEFAULT 1 NOT NULL,
    published_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    confirmed_at TIMESTAMP WITH TIME ZONE,
    closed_at TIMESTAMP WITH TIME ZONE,
    resolution TEXT DEFAULT '' NOT NULL,
    deleted BOOLEAN DEFAULT false NOT NULL,
    silenced_until TIMESTAMP WITH TIME ZONE,
    silenced_by TEXT DEFAULT '' NOT NULL,
    silence_reason TEXT DEFAULT '' NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX alert_closed ON alert (closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX alert_key ON alert (dedup_key, id);
CREATE UNIQUE INDEX alert_open ON alert (dedup_key) WHERE closed_at IS NULL;
CREATE TABLE revoked_token (
    sha256 TEXT NOT NULL,
    name TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    by TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (sha256)
);
CREATE TABLE token_use (
    name TEXT NOT NULL,
    day DATE NOT NULL,
    last_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (name, day)
)
 WITH (fillfactor = 50);
CREATE INDEX token_use_day ON token_use (day);
CREATE TABLE incarnation (
    id TEXT NOT NULL,
    drawn_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    reason TEXT DEFAULT '' NOT NULL,
    former TEXT[] DEFAULT '{}' NOT NULL,
    revision_base BIGINT DEFAULT 0 NOT NULL,
    requested TEXT,
    server TEXT DEFAULT '' NOT NULL
);
CREATE TABLE outbox_subject (
    topic TEXT NOT NULL,
    subject TEXT NOT NULL,
    revision BIGINT NOT NULL,
    deleted BOOLEAN DEFAULT false NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    touched_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    PRIMARY KEY (topic, subject)
);
CREATE INDEX outbox_subject_created ON outbox_subject (created_at);
CREATE TABLE outbox (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    event_id UUID NOT NULL,
    topic TEXT NOT NULL,
    type TEXT NOT NULL,
    subject TEXT NOT NULL,
    key TEXT,
    revision BIGINT NOT NULL,
    value BYTEA,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    traceparent TEXT NOT NULL,
    headers JSONB,
    partition INTEGER,
    sequence_number BIGINT,
    previous_sequence_number BIGINT,
    PRIMARY KEY (id)
);
CREATE INDEX outbox_numbered ON outbox (topic, partition, sequence_number) WHERE sequence_number IS NOT NULL;
CREATE INDEX outbox_unnumbered ON outbox (id) WHERE sequence_number IS NULL;
CREATE TABLE relay_position (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    sequence_number BIGINT NOT NULL,
    PRIMARY KEY (topic, partition)
);
CREATE TABLE consumed (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    epoch BIGINT NOT NULL,
    next_offset BIGINT NOT NULL,
    cluster_id TEXT NOT NULL,
    PRIMARY KEY (topic, partition)
);
CREATE TABLE seen_sequence (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    source TEXT NOT NULL,
    sequence_number BIGINT NOT NULL,
    PRIMARY KEY (topic, partition, source)
);
CREATE TABLE seen_event (
    topic TEXT NOT NULL,
    source TEXT NOT NULL,
    event_id TEXT NOT NULL,
    seen_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    PRIMARY KEY (topic, source, event_id)
);
CREATE INDEX seen_event_at ON seen_event (seen_at);
CREATE TABLE gap (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE dead_letter (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    "offset" BIGINT NOT NULL,
    subject TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('dead', 'parked')),
    reason TEXT NOT NULL,
    key BYTEA,
    value BYTEA,
    headers JSONB NOT NULL,
    record_at TIMESTAMP WITH TIME ZONE NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    undecoded BOOLEAN DEFAULT false NOT NULL,
    PRIMARY KEY (topic, partition, "offset")
);
CREATE INDEX dead_letter_at ON dead_letter (at);
CREATE INDEX dead_letter_subject ON dead_letter (topic, subject);
CREATE TABLE lease_pools (
    id TEXT NOT NULL,
    limit_units INTEGER NOT NULL CHECK (limit_units >= 0),
    hold_seconds DOUBLE PRECISION NOT NULL CHECK (hold_seconds > 0),
    ttl_seconds DOUBLE PRECISION NOT NULL CHECK (ttl_seconds > 0),
    reserve_seconds DOUBLE PRECISION NOT NULL CHECK (reserve_seconds > 0),
    policy JSONB DEFAULT '{}' NOT NULL,
    owner TEXT DEFAULT '' NOT NULL,
    revision INTEGER DEFAULT 1 NOT NULL,
    archived BOOLEAN DEFAULT false NOT NULL,
    last_token BIGINT DEFAULT 0 NOT NULL,
    dirty BOOLEAN DEFAULT true NOT NULL,
    wake_at TIMESTAMP WITH TIME ZONE,
    decided_at TIMESTAMP WITH TIME ZONE,
    reason TEXT DEFAULT '' NOT NULL,
    limit_in_force INTEGER,
    limit_reason TEXT DEFAULT '' NOT NULL,
    held JSONB DEFAULT '{}' NOT NULL,
    held_units BIGINT DEFAULT 0 NOT NULL,
    waiting_units BIGINT DEFAULT 0 NOT NULL,
    waiting_requests INTEGER DEFAULT 0 NOT NULL,
    waiting_by JSONB DEFAULT '{}' NOT NULL,
    counted_at TIMESTAMP WITH TIME ZONE,
    idle_unit_seconds DOUBLE PRECISION DEFAULT 0 NOT NULL,
    last_granted_at TIMESTAMP WITH TIME ZONE,
    verified_at TIMESTAMP WITH TIME ZONE,
    paces JSONB DEFAULT '{}' NOT NULL,
    blocked_until TIMESTAMP WITH TIME ZONE,
    incomplete_until TIMESTAMP WITH TIME ZONE,
    virtual_time DOUBLE PRECISION DEFAULT 0 NOT NULL,
    adaptive JSONB,
    evidence JSONB DEFAULT '[]' NOT NULL,
    throttle_reports JSONB DEFAULT '[]' NOT NULL,
    excess JSONB,
    pinned_reason TEXT,
    drained_reason TEXT,
    derived_units INTEGER,
    derived_until TIMESTAMP WITH TIME ZONE,
    derived_alerted BOOLEAN DEFAULT false NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX lease_pools_verified ON lease_pools (verified_at NULLS FIRST, id);
CREATE TABLE requests (
    lease_pool_id TEXT NOT NULL,
    id TEXT NOT NULL,
    place BIGINT GENERATED ALWAYS AS IDENTITY,
    tenant TEXT NOT NULL,
    operation TEXT NOT NULL,
    requested_units INTEGER NOT NULL CHECK (requested_units > 0),
    waiting_units INTEGER NOT NULL CHECK (waiting_units BETWEEN 0 AND requested_units),
    requested_at TIMESTAMP WITH TIME ZONE NOT NULL,
    last_requested_at TIMESTAMP WITH TIME ZONE NOT NULL,
    queued_at TIMESTAMP WITH TIME ZONE,
    traceparent TEXT DEFAULT '' NOT NULL,
    priority INTEGER DEFAULT 0 NOT NULL CHECK (priority BETWEEN 0 AND 9),
    whole BOOLEAN DEFAULT false NOT NULL,
    hold_seconds DOUBLE PRECISION,
    owner TEXT NOT NULL,
    since TIMESTAMP WITH TIME ZONE NOT NULL,
    group_name TEXT DEFAULT '' NOT NULL,
    gang_id TEXT,
    lapsed BOOLEAN DEFAULT false NOT NULL,
    over_kafka BOOLEAN DEFAULT false NOT NULL,
    holder TEXT DEFAULT '' NOT NULL,
    PRIMARY KEY (lease_pool_id, id)
);
CREATE INDEX requests_ended ON requests (last_requested_at) WHERE waiting_units = 0 OR lapsed;
CREATE INDEX requests_of_gang ON requests (gang_id, lease_pool_id) WHERE gang_id IS NOT NULL;
CREATE INDEX requests_queue ON requests (lease_pool_id, operation, tenant, priority, group_name, since, place) WHERE waiting_units > 0 AND NOT lapsed;
CREATE INDEX requests_stale ON requests (lease_pool_id, last_requested_at) WHERE waiting_units > 0 AND NOT lapsed AND last_requested_at > '-infinity';
CREATE INDEX requests_unannounced ON requests (lease_pool_id, place) WHERE waiting_units > 0 AND NOT lapsed AND queued_at IS NULL;
CREATE TABLE leases (
    id TEXT NOT NULL,
    lease_pool_id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    fencing_token BIGINT NOT NULL,
    granted_units INTEGER NOT NULL CHECK (granted_units > 0),
    units INTEGER NOT NULL CHECK (units BETWEEN 0 AND granted_units),
    state TEXT NOT NULL CHECK (state IN ('reserved', 'confirmed', 'released', 'expired', 'lost')),
    granted_at TIMESTAMP WITH TIME ZONE NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    hold_until TIMESTAMP WITH TIME ZONE NOT NULL,
    counted_until TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    traceparent TEXT DEFAULT '' NOT NULL,
    tenant TEXT DEFAULT '' NOT NULL,
    operation TEXT DEFAULT 'launch' NOT NULL,
    weight INTEGER DEFAULT 1 NOT NULL,
    owner TEXT NOT NULL,
    progress TEXT,
    progress_until TIMESTAMP WITH TIME ZONE,
    waited_seconds DOUBLE PRECISION DEFAULT 0 NOT NULL,
    mode TEXT DEFAULT 'enforce' NOT NULL,
    advised_wait_seconds DOUBLE PRECISION,
    reason TEXT DEFAULT '' NOT NULL,
    gang_id TEXT,
    replaced BOOLEAN DEFAULT false NOT NULL,
    reported_late BOOLEAN DEFAULT false NOT NULL,
    extended_at TIMESTAMP WITH TIME ZONE NOT NULL,
    over_kafka BOOLEAN DEFAULT false NOT NULL,
    unleased_by TEXT,
    uncounted_units INTEGER DEFAULT 0 NOT NULL,
    holders JSONB DEFAULT '{}' NOT NULL,
    deadline TIMESTAMP WITH TIME ZONE GENERATED ALWAYS AS (coalesce(counted_until, least(expires_at, hold_until, progress_until))) STORED,
    PRIMARY KEY (id),
    UNIQUE (lease_pool_id, fencing_token)
);
CREATE INDEX leases_due ON leases (lease_pool_id, deadline) WHERE ended_at IS NULL;
CREATE INDEX leases_ended ON leases (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX leases_of_request ON leases (lease_pool_id, request_id);
CREATE TABLE reception (
    way TEXT NOT NULL,
    received_until TIMESTAMP WITH TIME ZONE NOT NULL,
    downtimes JSONB DEFAULT '[]' NOT NULL,
    PRIMARY KEY (way)
);
CREATE TABLE tenants (
    lease_pool_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    virtual_finish DOUBLE PRECISION DEFAULT 0 NOT NULL,
    failures INTEGER DEFAULT 0 NOT NULL,
    backoff_until TIMESTAMP WITH TIME ZONE,
    held_back_until TIMESTAMP WITH TIME ZONE,
    held_back_reason TEXT DEFAULT '' NOT NULL,
    owner TEXT DEFAULT '' NOT NULL,
    PRIMARY KEY (lease_pool_id, tenant),
    FOREIGN KEY(lease_pool_id) REFERENCES lease_pools (id)
);
CREATE TABLE groups (
    lease_pool_id TEXT NOT NULL,
    name TEXT NOT NULL,
    size INTEGER NOT NULL CHECK (size > 0),
    spread_seconds DOUBLE PRECISION NOT NULL,
    members INTEGER DEFAULT 0 NOT NULL,
    first_at TIMESTAMP WITH TIME ZONE NOT NULL,
    last_start_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (lease_pool_id, name),
    FOREIGN KEY(lease_pool_id) REFERENCES lease_pools (id)
);
CREATE TABLE gangs (
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    size INTEGER NOT NULL CHECK (size > 0),
    requested_at TIMESTAMP WITH TIME ZONE NOT NULL,
    last_requested_at TIMESTAMP WITH TIME ZONE NOT NULL,
    turn_at TIMESTAMP WITH TIME ZONE,
    done_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id)
);
CREATE INDEX gangs_ready ON gangs (requested_at) WHERE turn_at IS NOT NULL AND done_at IS NULL;
CREATE TABLE slots (
    name TEXT NOT NULL,
    lease_pool_id TEXT NOT NULL,
    state TEXT NOT NULL,
    owner TEXT DEFAULT '' NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
    userdata JSONB DEFAULT '{}' NOT NULL,
    request_id TEXT,
    acquired_by TEXT DEFAULT '' NOT NULL,
    lease_id TEXT,
    fencing_token BIGINT,
    removed_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (name),
    FOREIGN KEY(lease_pool_id) REFERENCES lease_pools (id)
);
CREATE INDEX slots_available ON slots (lease_pool_id, state, updated_at, name) WHERE owner = '';
CREATE INDEX slots_owned ON slots (lease_pool_id, owner) WHERE owner != '';
CREATE INDEX slots_removed ON slots (lease_pool_id) WHERE removed_at IS NOT NULL;
CREATE TABLE slot_requests (
    lease_pool_id TEXT NOT NULL,
    state TEXT NOT NULL,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    requested_by TEXT NOT NULL,
    place BIGINT GENERATED ALWAYS AS IDENTITY,
    slot_count INTEGER NOT NULL CHECK (slot_count > 0),
    lease_request_id TEXT NOT NULL,
    last_requested_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (lease_pool_id, state, owner, id),
    FOREIGN KEY(lease_pool_id) REFERENCES lease_pools (id)
);
CREATE TABLE history (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    lease_pool_id TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    kind TEXT NOT NULL,
    lease_id TEXT,
    request_id TEXT,
    units INTEGER,
    reason TEXT NOT NULL,
    actor TEXT DEFAULT '' NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX history_of_lease ON history (lease_id, id) WHERE lease_id IS NOT NULL;
CREATE INDEX history_of_pool ON history (lease_pool_id, id);
INSERT INTO incarnation (id, server) VALUES (replace(gen_random_uuid()::text, '-', ''), slipway_server());
CREATE FUNCTION advance(
    topics text[], partitions integer[], epochs bigint[], ends bigint[], expected bigint[],
    numbered_topics text[], numbered_partitions integer[], sources text[], numbers bigint[], keep_plans boolean,
    OUT topic text, OUT partition integer, OUT source text, OUT sequence_number bigint, OUT dead boolean
) RETURNS SETOF record LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    moved integer;
BEGIN
    UPDATE consumed c SET next_offset = g.next_offset
    FROM unnest(topics, partitions, epochs, ends, expected) AS g (topic, partition, epoch, next_offset, expected)
    WHERE (c.topic, c.partition, c.epoch, c.next_offset) = (g.topic, g.partition, g.epoch, g.expected);
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF moved < cardinality(topics) THEN
        RETURN;
    END IF;
    IF keep_plans THEN
        PERFORM set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true);
    END IF;
    RETURN QUERY SELECT g.topic, g.partition, s.source, s.sequence_number,
        EXISTS (SELECT FROM dead_letter d WHERE d.topic = g.topic)
    FROM unnest(topics, partitions) AS g (topic, partition)
    LEFT JOIN seen_sequence s ON (s.topic, s.partition) = (g.topic, g.partition);
    INSERT INTO seen_sequence AS s (topic, partition, source, sequence_number)
    SELECT * FROM unnest(numbered_topics, numbered_partitions, sources, numbers)
    ON CONFLICT (topic, partition, source) DO UPDATE
    SET sequence_number = excluded.sequence_number WHERE s.sequence_number < excluded.sequence_number;
END $$;
