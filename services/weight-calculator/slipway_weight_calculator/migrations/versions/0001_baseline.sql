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
CREATE TABLE leader (
    one BOOLEAN DEFAULT true NOT NULL CHECK (one),
    epoch BIGINT DEFAULT 0 NOT NULL,
    instance TEXT DEFAULT '' NOT NULL,
    since TIMESTAMP WITH TIME ZONE,
    seen_at TIMESTAMP WITH TIME ZONE,
    at DOUBLE PRECISION DEFAULT 0 NOT NULL,
    seq BIGINT DEFAULT 0 NOT NULL,
    PRIMARY KEY (one)
)
 WITH (fillfactor = 50);
CREATE TABLE config (
    key TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (key)
);
CREATE TABLE health (
    key TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (key)
)
 WITH (fillfactor = 50);
CREATE TABLE boot (
    key TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (key)
);
CREATE TABLE signal (
    key TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (key)
);
CREATE TABLE open_alert (
    key TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (key)
);
CREATE TABLE refused_signal (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    at DOUBLE PRECISION NOT NULL,
    reason TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE weight (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    pool_id TEXT NOT NULL,
    record TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    archived BOOLEAN NOT NULL,
    PRIMARY KEY (id)
)
 WITH (fillfactor = 50);
CREATE INDEX weight_pool ON weight (pool_id);
CREATE TABLE journal (
    seq BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    until DOUBLE PRECISION NOT NULL,
    taken JSONB NOT NULL,
    left_out JSONB NOT NULL,
    dead_lettered JSONB NOT NULL,
    settled JSONB NOT NULL,
    written_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    PRIMARY KEY (seq)
);
CREATE INDEX journal_written_at ON journal (written_at);
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
INSERT INTO leader DEFAULT VALUES;
