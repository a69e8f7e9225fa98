-- Generated from store/tables.py by `make baseline`; do not edit.
CREATE FUNCTION slipway_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';
CREATE FUNCTION slipway_server() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws('/', extract(epoch FROM pg_postmaster_start_time()), d.oid, to_regclass('incarnation')::oid)
    FROM pg_database d WHERE d.datname = current_database()
$$;
CREATE FUNCTION percent_encoded(given text) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE WHEN given ~ '^[A-Za-z0-9_.~@-]*$' THEN given ELSE (
        SELECT string_agg(CASE WHEN c ~ '^[A-Za-z0-9_.~@-]$' THEN c ELSE
            regexp_replace(upper(encode(convert_to(c, 'UTF8'), 'hex')), '(..)', '%\1', 'g') END, '' ORDER BY place)
        FROM regexp_split_to_table(given, '') WITH ORDINALITY AS t (c, place)) END
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
CREATE TABLE deployment (
    one BOOLEAN DEFAULT true NOT NULL CHECK (one),
    id TEXT NOT NULL CHECK (length(id) BETWEEN 1 AND 27),
    PRIMARY KEY (one)
);
CREATE TABLE account (
    id TEXT NOT NULL,
    provider TEXT NOT NULL,
    region TEXT NOT NULL,
    identity TEXT NOT NULL,
    lease_pool_id TEXT NOT NULL,
    settings JSONB NOT NULL,
    credential JSONB DEFAULT '{}' NOT NULL,
    limits JSONB DEFAULT '{}' NOT NULL,
    request_timeout_seconds DOUBLE PRECISION,
    accepted_timeout_seconds DOUBLE PRECISION,
    reaped_at TIMESTAMP WITH TIME ZONE,
    passes BIGINT DEFAULT 0 NOT NULL,
    passed_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    listed_at TIMESTAMP WITH TIME ZONE,
    settled_seconds DOUBLE PRECISION,
    listing_problem TEXT DEFAULT '' NOT NULL,
    protected JSONB DEFAULT '{}' NOT NULL,
    refuses_terminations BOOLEAN DEFAULT false NOT NULL,
    mass_unresponsive BOOLEAN DEFAULT false NOT NULL,
    unanswered_since TIMESTAMP WITH TIME ZONE,
    unreachable BOOLEAN DEFAULT false NOT NULL,
    retired BOOLEAN DEFAULT false NOT NULL,
    throttled_since TIMESTAMP WITH TIME ZONE,
    throttled_at TIMESTAMP WITH TIME ZONE,
    throttled_calls BIGINT DEFAULT 0 NOT NULL,
    throttled BOOLEAN DEFAULT false NOT NULL,
    owner TEXT DEFAULT '' NOT NULL,
    spec JSONB DEFAULT '{}' NOT NULL,
    spec_digest TEXT DEFAULT '' NOT NULL,
    removed BOOLEAN DEFAULT false NOT NULL,
    check_began_at TIMESTAMP WITH TIME ZONE,
    checked_at TIMESTAMP WITH TIME ZONE,
    findings JSONB DEFAULT '[]' NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE worker_pool (
    id TEXT NOT NULL,
    min_capacity INTEGER NOT NULL CHECK (min_capacity >= 0),
    max_capacity INTEGER NOT NULL,
    scaling_ratio TEXT NOT NULL,
    mode TEXT NOT NULL,
    profile TEXT NOT NULL,
    boot_evidence TEXT NOT NULL,
    claim_evidence TEXT NOT NULL,
    on_bad_image TEXT NOT NULL,
    freeze_after INTEGER NOT NULL,
    paused BOOLEAN DEFAULT false NOT NULL,
    paused_reason TEXT DEFAULT '' NOT NULL,
    paused_by TEXT DEFAULT '' NOT NULL,
    paused_until TIMESTAMP WITH TIME ZONE,
    frozen BOOLEAN DEFAULT false NOT NULL,
    frozen_reason TEXT DEFAULT '' NOT NULL,
    frozen_by TEXT DEFAULT '' NOT NULL,
    deleted BOOLEAN DEFAULT false NOT NULL,
    drawn BIGINT DEFAULT 0 NOT NULL,
    revision BIGINT DEFAULT 1 NOT NULL,
    swept_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    attempted_at TIMESTAMP WITH TIME ZONE,
    age_alerted BOOLEAN DEFAULT false NOT NULL,
    limits JSONB DEFAULT '{}' NOT NULL,
    owner TEXT DEFAULT '' NOT NULL,
    spec JSONB DEFAULT '{}' NOT NULL,
    spec_digest TEXT DEFAULT '' NOT NULL,
    PRIMARY KEY (id),
    CHECK (max_capacity >= min_capacity)
);
CREATE INDEX worker_pool_deleted ON worker_pool (id) WHERE deleted;
CREATE INDEX worker_pool_paused ON worker_pool (paused_until) WHERE paused;
CREATE INDEX worker_pool_swept ON worker_pool (swept_at) WHERE NOT deleted;
CREATE TABLE pool_revision (
    pool_id TEXT NOT NULL,
    revision BIGINT NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    by TEXT NOT NULL,
    action TEXT NOT NULL,
    reason TEXT DEFAULT '' NOT NULL,
    to_revision BIGINT,
    owner TEXT NOT NULL,
    revisions JSONB NOT NULL,
    spec JSONB NOT NULL,
    spec_digest TEXT NOT NULL,
    changes JSONB NOT NULL,
    PRIMARY KEY (pool_id, revision),
    FOREIGN KEY(pool_id) REFERENCES worker_pool (id)
);
CREATE TABLE launch_config_name (
    name TEXT NOT NULL,
    pool_id TEXT NOT NULL,
    current_id TEXT NOT NULL,
    base_weight DOUBLE PRECISION NOT NULL,
    price_factor DOUBLE PRECISION NOT NULL,
    max_capacity INTEGER,
    deadlines JSONB DEFAULT '{}' NOT NULL,
    task_slots INTEGER DEFAULT 1 NOT NULL,
    paused BOOLEAN DEFAULT false NOT NULL,
    paused_reason TEXT DEFAULT '' NOT NULL,
    paused_by TEXT DEFAULT '' NOT NULL,
    paused_until TIMESTAMP WITH TIME ZONE,
    declared BOOLEAN DEFAULT true NOT NULL,
    PRIMARY KEY (name),
    FOREIGN KEY(pool_id) REFERENCES worker_pool (id)
);
CREATE INDEX launch_config_name_first_claim ON launch_config_name (CAST(deadlines ->> 'first_claim_seconds' AS DOUBLE PRECISION));
CREATE INDEX launch_config_name_idle_despite_demand ON launch_config_name (CAST(deadlines ->> 'idle_despite_demand_seconds' AS DOUBLE PRECISION));
CREATE INDEX launch_config_name_paused ON launch_config_name (paused_until) WHERE paused;
CREATE INDEX launch_config_name_pool ON launch_config_name (pool_id);
CREATE INDEX launch_config_name_registration ON launch_config_name (CAST(deadlines ->> 'registration_seconds' AS DOUBLE PRECISION));
CREATE INDEX launch_config_name_unresponsive ON launch_config_name (CAST(deadlines ->> 'unresponsive_seconds' AS DOUBLE PRECISION));
CREATE TABLE refused_pause (
    pool_id TEXT NOT NULL,
    holder TEXT NOT NULL,
    until TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (pool_id, holder)
);
CREATE TABLE launch_config (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    pool_id TEXT NOT NULL,
    account_id TEXT NOT NULL,
    region TEXT NOT NULL,
    zone TEXT NOT NULL,
    instance_type TEXT NOT NULL,
    image_revision TEXT NOT NULL,
    settings JSONB NOT NULL,
    user_data TEXT DEFAULT '' NOT NULL,
    profile TEXT NOT NULL,
    boot_evidence TEXT NOT NULL,
    claim_evidence TEXT NOT NULL,
    on_bad_image TEXT NOT NULL,
    freeze_after INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('active', 'draining', 'archived')),
    state_reason TEXT DEFAULT '' NOT NULL,
    state_by TEXT DEFAULT '' NOT NULL,
    replaced_by TEXT DEFAULT '' NOT NULL,
    proven_at TIMESTAMP WITH TIME ZONE,
    starts_before BIGINT DEFAULT 0 NOT NULL,
    drain_seconds DOUBLE PRECISION,
    drain_from TIMESTAMP WITH TIME ZONE,
    drain_until TIMESTAMP WITH TIME ZONE,
    drain_terminate BOOLEAN DEFAULT false NOT NULL,
    drain_alerted BOOLEAN DEFAULT false NOT NULL,
    withdrawn_at TIMESTAMP WITH TIME ZONE,
    declared_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    archived_at TIMESTAMP WITH TIME ZONE,
    revision BIGINT DEFAULT 1 NOT NULL,
    capacity TEXT DEFAULT '' NOT NULL,
    quota_family TEXT DEFAULT '' NOT NULL,
    subnet TEXT DEFAULT '' NOT NULL,
    image TEXT DEFAULT '' NOT NULL,
    image_key TEXT GENERATED ALWAYS AS ('image/' || percent_encoded(CASE WHEN image <> '' THEN image ELSE image_revision END)) STORED NOT NULL,
    quota_key TEXT GENERATED ALWAYS AS ('quota/' || percent_encoded(account_id) || '/' || percent_encoded(region) || '/' || percent_encoded(CASE WHEN quota_family <> '' THEN quota_family ELSE split_part(instance_type, '.', 1) END)) STORED NOT NULL,
    credential_key TEXT GENERATED ALWAYS AS ('credential/' || percent_encoded(account_id)) STORED NOT NULL,
    capacity_key TEXT GENERATED ALWAYS AS ('capacity/' || CASE WHEN capacity <> '' THEN capacity ELSE percent_encoded(account_id) || '/' || percent_encoded(region) || '/' || percent_encoded(zone) || '/' || percent_encoded(instance_type) || CASE settings ->> 'lifecycle' WHEN 'spot' THEN '/spot' ELSE '/on-demand' END END) STORED NOT NULL,
    subnet_key TEXT GENERATED ALWAYS AS (CASE WHEN subnet <> '' THEN 'quota/' || percent_encoded(account_id) || '/' || percent_encoded(region) || '/subnet/' || percent_encoded(subnet) ELSE '' END) STORED NOT NULL,
    PRIMARY KEY (id),
    FOREIGN KEY(name) REFERENCES launch_config_name (name),
    FOREIGN KEY(pool_id) REFERENCES worker_pool (id),
    FOREIGN KEY(account_id) REFERENCES account (id)
);
CREATE INDEX launch_config_account ON launch_config (account_id) WHERE state != 'archived';
CREATE INDEX launch_config_alerted ON launch_config (id) WHERE drain_alerted;
CREATE INDEX launch_config_archived ON launch_config (archived_at) WHERE state = 'archived';
CREATE INDEX launch_config_capacity ON launch_config (capacity_key) WHERE state != 'archived';
CREATE INDEX launch_config_credential ON launch_config (credential_key) WHERE state != 'archived';
CREATE INDEX launch_config_declared ON launch_config (declared_at) WHERE state = 'active';
CREATE INDEX launch_config_draining ON launch_config (drain_from) WHERE state = 'draining';
CREATE INDEX launch_config_fallback ON launch_config (name) WHERE state = 'active' AND replaced_by != '';
CREATE INDEX launch_config_image ON launch_config (image_key) WHERE state != 'archived';
CREATE INDEX launch_config_of_name ON launch_config (name);
CREATE INDEX launch_config_pool ON launch_config (pool_id) WHERE state != 'archived';
CREATE INDEX launch_config_quota ON launch_config (quota_key) WHERE state != 'archived';
CREATE INDEX launch_config_subnet ON launch_config (subnet_key) WHERE state != 'archived';
CREATE TABLE deadline_pass (
    id BOOLEAN DEFAULT true NOT NULL CHECK (id),
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    previous_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id)
);
CREATE TABLE downtime (
    from_at TIMESTAMP WITH TIME ZONE NOT NULL,
    until_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (until_at)
);
CREATE TABLE launch_config_outcomes (
    launch_config_id TEXT NOT NULL,
    stage TEXT NOT NULL,
    failures BIGINT DEFAULT 0 NOT NULL,
    successes BIGINT DEFAULT 0 NOT NULL,
    folded BIGINT DEFAULT 0 NOT NULL,
    written_off BIGINT DEFAULT 0 NOT NULL,
    unfolded BIGINT GENERATED ALWAYS AS (greatest(0, failures - written_off - folded)) STORED NOT NULL,
    unfolded_since TIMESTAMP WITH TIME ZONE,
    keys TEXT[] DEFAULT '{}' NOT NULL,
    PRIMARY KEY (launch_config_id, stage),
    FOREIGN KEY(launch_config_id) REFERENCES launch_config (id)
);
CREATE INDEX launch_config_outcomes_unfolded ON launch_config_outcomes (launch_config_id) WHERE unfolded > 0;
CREATE TABLE shared_window (
    key TEXT NOT NULL,
    stage TEXT NOT NULL,
    version BIGINT DEFAULT 0 NOT NULL,
    size INTEGER,
    state TEXT DEFAULT 'healthy' NOT NULL CHECK (state IN ('healthy', 'tripped')),
    unconfirmed INTEGER DEFAULT 0 NOT NULL,
    reason TEXT DEFAULT '' NOT NULL,
    PRIMARY KEY (key, stage)
);
CREATE TABLE config_usage (
    pool_id TEXT NOT NULL,
    launch_config_id TEXT NOT NULL,
    launch INTEGER DEFAULT 0 NOT NULL,
    boot INTEGER DEFAULT 0 NOT NULL,
    claim INTEGER DEFAULT 0 NOT NULL,
    running INTEGER DEFAULT 0 NOT NULL,
    serving INTEGER DEFAULT 0 NOT NULL,
    leaving INTEGER DEFAULT 0 NOT NULL,
    stuck INTEGER DEFAULT 0 NOT NULL,
    stranded INTEGER DEFAULT 0 NOT NULL,
    marked INTEGER DEFAULT 0 NOT NULL
);
CREATE INDEX config_usage_config ON config_usage (pool_id, launch_config_id);
CREATE TABLE shared_usage (
    key TEXT NOT NULL,
    stage TEXT NOT NULL,
    in_flight INTEGER DEFAULT 0 NOT NULL,
    unfolded INTEGER DEFAULT 0 NOT NULL
);
CREATE INDEX shared_usage_key ON shared_usage (key);
CREATE TABLE waiting_pool (
    pool_id TEXT NOT NULL,
    key TEXT NOT NULL,
    stage TEXT NOT NULL,
    units INTEGER NOT NULL,
    waiting_since TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (pool_id, key, stage)
);
CREATE INDEX waiting_pool_turn ON waiting_pool (key, stage, waiting_since, pool_id);
CREATE TABLE spend_usage (
    account_id TEXT NOT NULL,
    pool_id TEXT NOT NULL,
    price NUMERIC,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    live INTEGER NOT NULL,
    began INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    seconds NUMERIC NOT NULL
);
CREATE INDEX spend_usage_ended ON spend_usage (at) WHERE live = 0;
CREATE INDEX spend_usage_scope ON spend_usage (pool_id, account_id, at);
CREATE TABLE forgiven (
    pool_id TEXT NOT NULL,
    key TEXT NOT NULL,
    stage TEXT NOT NULL,
    unconfirmed INTEGER NOT NULL,
    PRIMARY KEY (pool_id, key, stage),
    FOREIGN KEY(pool_id) REFERENCES worker_pool (id)
);
CREATE TABLE weight (
    launch_config_id TEXT NOT NULL,
    revision BIGINT NOT NULL,
    record JSONB NOT NULL,
    received_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    PRIMARY KEY (launch_config_id)
);
CREATE INDEX weight_received ON weight (received_at);
CREATE TABLE launch_stop_guard (
    id BOOLEAN DEFAULT true NOT NULL CHECK (id),
    PRIMARY KEY (id)
);
CREATE TABLE launch_stop (
    scope TEXT NOT NULL CHECK (scope IN ('all', 'account', 'pool', 'restore')),
    scope_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    by TEXT NOT NULL,
    until TIMESTAMP WITH TIME ZONE,
    at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    PRIMARY KEY (scope, scope_id)
);
CREATE TABLE demand (
    pool_id TEXT NOT NULL,
    source TEXT NOT NULL,
    pending INTEGER NOT NULL CHECK (pending >= 0),
    claimed INTEGER CHECK (claimed >= 0),
    total INTEGER CHECK (total >= 0),
    epoch BIGINT,
    observed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    valid_for_seconds DOUBLE PRECISION NOT NULL,
    pending_since TIMESTAMP WITH TIME ZONE,
    claimed_seen_at TIMESTAMP WITH TIME ZONE,
    received_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    reported_by TEXT DEFAULT '' NOT NULL,
    traceparent TEXT DEFAULT '' NOT NULL,
    alerted BOOLEAN DEFAULT false NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    end_reason TEXT DEFAULT '' NOT NULL,
    PRIMARY KEY (pool_id, source),
    FOREIGN KEY(pool_id) REFERENCES worker_pool (id)
);
CREATE INDEX demand_ended ON demand (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE lease_request (
    id TEXT NOT NULL,
    lease_pool_id TEXT NOT NULL,
    pool_id TEXT NOT NULL,
    launch_config_id TEXT NOT NULL,
    units INTEGER NOT NULL,
    sent_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    traceparent TEXT NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX lease_request_sent ON lease_request (sent_at);
CREATE TABLE lease (
    id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    lease_pool_id TEXT NOT NULL,
    launch_config_id TEXT NOT NULL,
    fencing_token BIGINT NOT NULL,
    units INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('reserved', 'confirmed', 'unleased', 'ended')),
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    hold_until TIMESTAMP WITH TIME ZONE NOT NULL,
    ttl_seconds DOUBLE PRECISION,
    renewed_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    traceparent TEXT NOT NULL,
    granted_units INTEGER DEFAULT 0 NOT NULL,
    granted_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX lease_ended ON lease (renewed_at) WHERE state = 'ended';
CREATE INDEX lease_granted ON lease (lease_pool_id, granted_at) WHERE granted_units > 0;
CREATE INDEX lease_live ON lease (renewed_at) WHERE state != 'ended';
CREATE INDEX lease_ttl ON lease (ttl_seconds) WHERE state != 'ended';
CREATE TABLE unleased_pace (
    lease_pool_id TEXT NOT NULL,
    next_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (lease_pool_id)
);
CREATE TABLE provider_bucket (
    bucket TEXT NOT NULL,
    full_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (bucket)
);
CREATE TABLE launch_limit (
    scope TEXT NOT NULL CHECK (scope IN ('account', 'pool')),
    scope_id TEXT NOT NULL,
    launches_per_hour INTEGER,
    spend_per_day NUMERIC,
    lifetime_seconds DOUBLE PRECISION NOT NULL,
    default_price NUMERIC,
    alerted TEXT DEFAULT '' NOT NULL,
    limited_at TIMESTAMP WITH TIME ZONE,
    forgotten_at TIMESTAMP WITH TIME ZONE,
    forgotten_launches INTEGER DEFAULT 0 NOT NULL,
    forgotten_spend NUMERIC DEFAULT 0 NOT NULL,
    PRIMARY KEY (scope, scope_id)
);
CREATE TABLE launch_batch (
    id UUID NOT NULL,
    launch_config_id TEXT NOT NULL,
    pool_id TEXT DEFAULT '' NOT NULL,
    account_id TEXT NOT NULL,
    lease_id TEXT NOT NULL,
    token TEXT NOT NULL,
    body JSONB NOT NULL,
    units INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('calling', 'known')),
    outcome TEXT DEFAULT '' NOT NULL,
    repeats INTEGER DEFAULT 0 NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    call_deadline TIMESTAMP WITH TIME ZONE NOT NULL,
    timeout_seconds DOUBLE PRECISION DEFAULT 0 NOT NULL,
    visibility_seconds DOUBLE PRECISION DEFAULT 0 NOT NULL,
    repeatable BOOLEAN DEFAULT false NOT NULL,
    called_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    called_seconds DOUBLE PRECISION DEFAULT 0 NOT NULL,
    handle TEXT DEFAULT '' NOT NULL,
    poll_at TIMESTAMP WITH TIME ZONE,
    known_at TIMESTAMP WITH TIME ZONE,
    charged INTEGER DEFAULT 0 NOT NULL,
    unproven INTEGER DEFAULT 0 NOT NULL,
    price NUMERIC,
    minute_seconds DOUBLE PRECISION DEFAULT 60 NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (token)
);
CREATE INDEX launch_batch_accepted ON launch_batch (poll_at) WHERE state = 'calling' AND handle <> '';
CREATE INDEX launch_batch_calling ON launch_batch (call_deadline) WHERE state = 'calling';
CREATE INDEX launch_batch_charged ON launch_batch (account_id, known_at) WHERE state = 'known' AND charged > 0;
CREATE INDEX launch_batch_known ON launch_batch (known_at) WHERE state = 'known';
CREATE INDEX launch_batch_unproven ON launch_batch (account_id, known_at) WHERE unproven > 0;
CREATE TABLE worker (
    id UUID NOT NULL,
    pool_id TEXT NOT NULL,
    launch_config_id TEXT NOT NULL,
    account_id TEXT NOT NULL,
    image_revision TEXT NOT NULL,
    state TEXT NOT NULL,
    decision_id UUID NOT NULL,
    probe_permit BIGINT,
    request_id TEXT,
    lease_id TEXT,
    holds_unit BOOLEAN DEFAULT false NOT NULL,
    batch_id UUID,
    instance_id TEXT,
    token_sha256 TEXT,
    token_used BOOLEAN DEFAULT false NOT NULL,
    not_before TIMESTAMP WITH TIME ZONE,
    requested_at TIMESTAMP WITH TIME ZONE NOT NULL,
    launched_at TIMESTAMP WITH TIME ZONE,
    registered_at TIMESTAMP WITH TIME ZONE,
    first_claimed_at TIMESTAMP WITH TIME ZONE,
    idle_since TIMESTAMP WITH TIME ZONE,
    last_seen_at TIMESTAMP WITH TIME ZONE,
    contact_period TIMESTAMP WITH TIME ZONE GENERATED ALWAYS AS (date_bin(interval '5 min', last_seen_at, timestamptz '2000-01-01 00:00+00')) STORED,
    stopping_at TIMESTAMP WITH TIME ZONE,
    may_finish BOOLEAN DEFAULT false NOT NULL,
    leave_after_task BOOLEAN DEFAULT false NOT NULL,
    drain_until TIMESTAMP WITH TIME ZONE,
    drain_left_seconds DOUBLE PRECISION,
    termination_refusals INTEGER DEFAULT 0 NOT NULL,
    termination_refused_at TIMESTAMP WITH TIME ZONE,
    stuck_at TIMESTAMP WITH TIME ZONE,
    notice TEXT DEFAULT '' NOT NULL,
    task_slots INTEGER DEFAULT 1 NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    failed_at TIMESTAMP WITH TIME ZONE,
    termination_requested_at TIMESTAMP WITH TIME ZONE,
    reason TEXT DEFAULT '' NOT NULL,
    traceparent TEXT NOT NULL,
    image_key TEXT DEFAULT '' NOT NULL,
    quota_key TEXT DEFAULT '' NOT NULL,
    capacity_key TEXT DEFAULT '' NOT NULL,
    subnet_key TEXT DEFAULT '' NOT NULL,
    awaits_claim BOOLEAN DEFAULT false NOT NULL,
    account_unreachable BOOLEAN DEFAULT false NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (account_id, instance_id)
);
CREATE INDEX worker_batch ON worker (batch_id);
CREATE INDEX worker_booting ON worker (launched_at) WHERE state IN ('starting');
CREATE INDEX worker_contact ON worker (contact_period) WHERE (state NOT IN ('stopped'));
CREATE INDEX worker_draining ON worker (drain_until) WHERE (state NOT IN ('stopped')) AND drain_until IS NOT NULL;
CREATE INDEX worker_draining_pool ON worker (pool_id) WHERE (state NOT IN ('stopped')) AND drain_until IS NOT NULL;
CREATE INDEX worker_ended ON worker (ended_at) WHERE state IN ('stopped');
CREATE INDEX worker_failed ON worker (launch_config_id, failed_at DESC) WHERE failed_at IS NOT NULL;
CREATE INDEX worker_idle ON worker (pool_id, idle_since) WHERE state IN ('running') AND idle_since IS NOT NULL;
CREATE INDEX worker_lease ON worker (lease_id) WHERE state IN ('requested') AND lease_id IS NOT NULL;
CREATE INDEX worker_leaving ON worker (pool_id) WHERE state IN ('stopping');
CREATE INDEX worker_live ON worker (pool_id, launch_config_id, state) WHERE (state NOT IN ('stopped'));
CREATE INDEX worker_live_instance ON worker (account_id, instance_id) WHERE (state NOT IN ('stopped'));
CREATE INDEX worker_marked ON worker (pool_id) WHERE state IN ('running') AND leave_after_task;
CREATE UNIQUE INDEX worker_probe ON worker (launch_config_id, probe_permit) WHERE probe_permit IS NOT NULL;
CREATE INDEX worker_ran ON worker (pool_id, ended_at) WHERE state IN ('stopped') AND instance_id IS NOT NULL;
CREATE INDEX worker_refused ON worker (account_id) WHERE (state NOT IN ('stopped')) AND termination_refusals > 0;
CREATE INDEX worker_request ON worker (request_id) WHERE state IN ('requested', 'launching');
CREATE INDEX worker_stopping ON worker (coalesce(CASE WHEN (registered_at IS NULL) THEN timestamptz '-infinity' END, stopping_at)) WHERE state IN ('stopping') AND instance_id IS NOT NULL;
CREATE INDEX worker_unclaimed ON worker (pool_id) WHERE state IN ('running') AND awaits_claim AND first_claimed_at IS NULL;
CREATE INDEX worker_unlaunched ON worker (pool_id) WHERE state IN ('stopped') AND launched_at IS NULL AND registered_at IS NULL;
CREATE INDEX worker_waiting ON worker (pool_id) WHERE state IN ('requested');
CREATE TABLE claim (
    worker_id UUID NOT NULL,
    source TEXT NOT NULL,
    task_id TEXT NOT NULL,
    claimed_at TEXT NOT NULL,
    pool_id TEXT NOT NULL,
    reported_at TIMESTAMP WITH TIME ZONE NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    counted BOOLEAN DEFAULT true NOT NULL,
    PRIMARY KEY (worker_id, source, task_id, claimed_at)
);
CREATE INDEX claim_ended ON claim (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX claim_longest ON claim (pool_id, (ended_at - started_at)) WHERE ended_at IS NOT NULL AND counted;
CREATE INDEX claim_open ON claim (worker_id) WHERE ended_at IS NULL;
CREATE INDEX claim_recent ON claim (pool_id, source, ended_at);
CREATE INDEX claim_worker ON claim (worker_id, ended_at);
CREATE TABLE unreachable_machine (
    worker_id UUID NOT NULL,
    account_id TEXT NOT NULL,
    pool_id TEXT NOT NULL,
    launch_config_id TEXT NOT NULL,
    batch_id UUID,
    instance_id TEXT,
    since TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    PRIMARY KEY (worker_id)
);
CREATE INDEX unreachable_machine_account ON unreachable_machine (account_id);
CREATE INDEX unreachable_machine_batch ON unreachable_machine (batch_id);
CREATE TABLE orphan_instance (
    account_id TEXT NOT NULL,
    instance_id TEXT NOT NULL,
    batch_id TEXT NOT NULL,
    launch_config_id TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    found_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    reason TEXT NOT NULL,
    decision TEXT DEFAULT '' NOT NULL CHECK (decision IN ('', 'leave', 'terminate')),
    PRIMARY KEY (account_id, instance_id)
);
CREATE INDEX orphan_instance_batch ON orphan_instance (batch_id);
CREATE TABLE missing_instance (
    worker_id UUID NOT NULL,
    account_id TEXT NOT NULL,
    found_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    PRIMARY KEY (worker_id)
);
CREATE INDEX missing_instance_account ON missing_instance (account_id);
CREATE TABLE decision (
    id UUID NOT NULL,
    pool_id TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    last_at TIMESTAMP WITH TIME ZONE NOT NULL,
    times INTEGER DEFAULT 1 NOT NULL,
    launched INTEGER NOT NULL,
    reason TEXT NOT NULL,
    details JSONB NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX decision_at ON decision (at);
CREATE INDEX decision_pool ON decision (pool_id, at DESC);
CREATE TABLE dirty_pool (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    pool_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    dirty_since TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id)
);
CREATE INDEX dirty_pool_due ON dirty_pool (due_at, id);
CREATE INDEX dirty_pool_pool ON dirty_pool (pool_id, due_at);
CREATE TABLE workspace (
    id UUID NOT NULL,
    deployment TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    account_id TEXT NOT NULL,
    batch_id UUID NOT NULL,
    ordinal INTEGER NOT NULL,
    launch_config_id TEXT NOT NULL,
    phase TEXT NOT NULL CHECK (phase IN ('queued', 'unknown', 'ready', 'destroying', 'orphan', 'gone')),
    holder TEXT DEFAULT '' NOT NULL,
    fence BIGINT DEFAULT 0 NOT NULL,
    locked_until TIMESTAMP WITH TIME ZONE,
    effects_seconds FLOAT NOT NULL,
    effects_until TIMESTAMP WITH TIME ZONE,
    due_at TIMESTAMP WITH TIME ZONE,
    failed_runs INTEGER DEFAULT 0 NOT NULL,
    interruptions INTEGER DEFAULT 0 NOT NULL,
    instance_id TEXT,
    address TEXT DEFAULT '' NOT NULL,
    outcome JSONB,
    problem TEXT DEFAULT '' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    refreshed_at TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id),
    UNIQUE (batch_id, ordinal)
);
CREATE INDEX workspace_account ON workspace (account_id) WHERE phase != 'gone';
CREATE INDEX workspace_due ON workspace (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX workspace_ended ON workspace (ended_at) WHERE phase = 'gone';
CREATE UNIQUE INDEX workspace_instance ON workspace (account_id, instance_id) WHERE phase != 'gone' AND instance_id IS NOT NULL;
CREATE TABLE workspace_document (
    workspace_id UUID NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('inputs', 'state', 'rejected')),
    number BIGINT DEFAULT 0 NOT NULL,
    lineage TEXT DEFAULT '' NOT NULL,
    serial BIGINT DEFAULT 0 NOT NULL,
    key_id TEXT NOT NULL,
    encrypted BYTEA NOT NULL,
    reason TEXT DEFAULT '' NOT NULL,
    saved_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    PRIMARY KEY (workspace_id, kind, number)
);
CREATE INDEX workspace_document_key ON workspace_document (key_id);
CREATE TABLE workspace_listing (
    account_id TEXT NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    fence BIGINT DEFAULT 0 NOT NULL,
    listed_at TIMESTAMP WITH TIME ZONE,
    found JSONB DEFAULT '[]' NOT NULL,
    problem TEXT DEFAULT '' NOT NULL,
    PRIMARY KEY (account_id)
);
CREATE TABLE console_output (
    image_revision TEXT NOT NULL,
    account_id TEXT NOT NULL,
    pool_id TEXT NOT NULL,
    launch_config_id TEXT NOT NULL,
    batch_id UUID NOT NULL,
    worker_id UUID NOT NULL,
    instance_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    requested_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock(),
    attempts INTEGER DEFAULT 0 NOT NULL,
    settled_at TIMESTAMP WITH TIME ZONE,
    resolved_at TIMESTAMP WITH TIME ZONE,
    lines JSONB DEFAULT '[]' NOT NULL,
    problem TEXT DEFAULT '' NOT NULL,
    PRIMARY KEY (image_revision)
);
CREATE INDEX console_output_due ON console_output (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX console_output_requested ON console_output (requested_at);
CREATE TABLE worker_error (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    at TIMESTAMP WITH TIME ZONE DEFAULT slipway_clock() NOT NULL,
    worker_id UUID NOT NULL,
    pool_id TEXT NOT NULL,
    launch_config_id TEXT NOT NULL,
    image_revision TEXT NOT NULL,
    code TEXT NOT NULL,
    sample TEXT DEFAULT '' NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX worker_error_config ON worker_error (launch_config_id, at);
CREATE INDEX worker_error_worker ON worker_error (worker_id, at);
CREATE TABLE worker_error_hour (
    launch_config_id TEXT NOT NULL,
    code TEXT NOT NULL,
    hour TIMESTAMP WITH TIME ZONE NOT NULL,
    pool_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (launch_config_id, code, hour)
);
CREATE INDEX worker_error_hour_hour ON worker_error_hour (hour);
CREATE TABLE pool_balance (
    pool_id TEXT NOT NULL,
    surplus JSONB DEFAULT '{}' NOT NULL,
    missing_since TIMESTAMP WITH TIME ZONE,
    starved BOOLEAN DEFAULT false NOT NULL,
    short BOOLEAN DEFAULT false NOT NULL,
    PRIMARY KEY (pool_id)
);
CREATE INDEX pool_balance_missing ON pool_balance (missing_since) WHERE missing_since IS NOT NULL;
CREATE INDEX pool_balance_starved ON pool_balance (pool_id) WHERE starved;
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
CREATE FUNCTION shared_keys(c launch_config) RETURNS TABLE (kind text, key text, stage text)
LANGUAGE sql IMMUTABLE AS $$
    SELECT k.kind, k.key, k.stage FROM (VALUES
        ('image', c.image_key, 'boot'), ('image', c.image_key, 'claim'), ('image', c.image_key, 'launch'),
        ('quota', c.quota_key, 'launch'), ('credential', c.credential_key, 'launch'),
        ('capacity', c.capacity_key, 'launch'), ('quota', c.subnet_key, 'launch')
    ) AS k (kind, key, stage) WHERE k.key <> '' AND (k.stage <> 'claim' OR c.claim_evidence <> 'none')
$$;
CREATE FUNCTION window_keys(c launch_config, of text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(k.key ORDER BY k.key), '{}') FROM shared_keys(c) AS k
    WHERE k.stage = of AND (k.kind, k.stage) IN (
        ('image', 'boot'), ('image', 'claim'), ('quota', 'launch'), ('capacity', 'launch'))
$$;
CREATE FUNCTION uptime_since(since timestamptz) RETURNS double precision LANGUAGE sql STABLE AS $$
    SELECT extract(epoch FROM p.at - since)::float8 - coalesce((
        SELECT sum(extract(epoch FROM d.until_at - greatest(d.from_at, since)))::float8
        FROM downtime d WHERE d.until_at > since), 0)
    FROM deadline_pass p
$$;
CREATE FUNCTION config_usage_of(w worker) RETURNS TABLE (
    launch int, boot int, claim int, running int, serving int, leaving int, stuck int, stranded int, marked int
) LANGUAGE sql IMMUTABLE AS $$ SELECT
        (w.state IN ('requested', 'launching')
        OR w.state IN ('stopping') AND w.instance_id IS NULL AND NOT w.account_unreachable)::int,
        (w.state IN ('starting'))::int,
        (w.state IN ('running') AND w.first_claimed_at IS NULL AND w.awaits_claim)::int,
        (w.state IN ('running'))::int,
        (w.state IN ('requested', 'launching', 'starting', 'running'))::int,
        (w.state IN ('stopping'))::int,
        (w.state IN ('stopping') AND w.stuck_at IS NOT NULL)::int,
        (w.state IN ('stopping') AND w.probe_permit IS NOT NULL AND w.registered_at IS NULL
        AND w.termination_refusals > 0)::int,
        (w.state IN ('running') AND w.leave_after_task)::int
$$;
CREATE FUNCTION shared_usage_of(w worker) RETURNS TABLE (key text, stage text) LANGUAGE sql IMMUTABLE AS $$
    SELECT k.key, k.stage FROM config_usage_of(w) AS u CROSS JOIN LATERAL (VALUES
        (w.image_key, 'boot', u.launch + u.boot), (w.quota_key, 'launch', u.launch),
        (w.image_key, 'claim', CASE WHEN w.awaits_claim THEN u.launch + u.boot + u.claim END),
        (w.capacity_key, 'launch', u.launch), (w.subnet_key, 'launch', u.launch)
    ) AS k (key, stage, starts) WHERE k.starts > 0 AND k.key <> ''
$$;
CREATE FUNCTION count_inserted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO config_usage (
        pool_id, launch_config_id, launch, boot, claim, running, serving, leaving, stuck, stranded, marked
    ) SELECT w.pool_id, w.launch_config_id,
        sum(u.launch), sum(u.boot), sum(u.claim), sum(u.running), sum(u.serving), sum(u.leaving),
        sum(u.stuck), sum(u.stranded), sum(u.marked)
    FROM new_rows w CROSS JOIN LATERAL config_usage_of(w) AS u WHERE w.state NOT IN ('stopped')
    GROUP BY w.pool_id, w.launch_config_id;
    INSERT INTO shared_usage (key, stage, in_flight) SELECT k.key, k.stage, count(*)
    FROM new_rows w CROSS JOIN LATERAL shared_usage_of(w) AS k WHERE w.state NOT IN ('stopped')
    GROUP BY k.key, k.stage;
    RETURN NULL;
END $$;
CREATE FUNCTION count_deleted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO config_usage (
        pool_id, launch_config_id, launch, boot, claim, running, serving, leaving, stuck, stranded, marked
    ) SELECT w.pool_id, w.launch_config_id,
        -sum(u.launch), -sum(u.boot), -sum(u.claim), -sum(u.running), -sum(u.serving), -sum(u.leaving),
        -sum(u.stuck), -sum(u.stranded), -sum(u.marked)
    FROM old_rows w CROSS JOIN LATERAL config_usage_of(w) AS u WHERE w.state NOT IN ('stopped')
    GROUP BY w.pool_id, w.launch_config_id;
    INSERT INTO shared_usage (key, stage, in_flight) SELECT k.key, k.stage, -count(*)
    FROM old_rows w CROSS JOIN LATERAL shared_usage_of(w) AS k WHERE w.state NOT IN ('stopped')
    GROUP BY k.key, k.stage;
    RETURN NULL;
END $$;
CREATE FUNCTION count_updated() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO config_usage (
        pool_id, launch_config_id, launch, boot, claim, running, serving, leaving, stuck, stranded, marked
    ) SELECT new.pool_id, new.launch_config_id,
        n.launch - o.launch, n.boot - o.boot, n.claim - o.claim, n.running - o.running, n.serving - o.serving,
        n.leaving - o.leaving, n.stuck - o.stuck, n.stranded - o.stranded, n.marked - o.marked
    FROM config_usage_of(new) AS n CROSS JOIN config_usage_of(old) AS o WHERE n IS DISTINCT FROM o;
    INSERT INTO shared_usage (key, stage, in_flight) SELECT key, stage, sum(change) FROM (
        SELECT key, stage, 1 AS change FROM shared_usage_of(new)
        UNION ALL SELECT key, stage, -1 FROM shared_usage_of(old)) AS c
    GROUP BY key, stage HAVING sum(change) <> 0;
    RETURN NULL;
END $$;
CREATE TRIGGER worker_inserted AFTER INSERT ON worker REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION count_inserted();
CREATE TRIGGER worker_deleted AFTER DELETE ON worker REFERENCING OLD TABLE AS old_rows
FOR EACH STATEMENT EXECUTE FUNCTION count_deleted();
CREATE TRIGGER worker_updated AFTER UPDATE OF
    state, instance_id, registered_at, first_claimed_at, stuck_at, termination_refusals, leave_after_task,
    awaits_claim, account_unreachable, image_key, quota_key, capacity_key, subnet_key
ON worker FOR EACH ROW WHEN ((
    old.state, old.instance_id, old.registered_at, old.first_claimed_at, old.stuck_at,
    old.termination_refusals, old.leave_after_task, old.awaits_claim, old.account_unreachable, old.image_key,
    old.quota_key, old.capacity_key, old.subnet_key
) IS DISTINCT FROM (
    new.state, new.instance_id, new.registered_at, new.first_claimed_at, new.stuck_at,
    new.termination_refusals, new.leave_after_task, new.awaits_claim, new.account_unreachable, new.image_key,
    new.quota_key, new.capacity_key, new.subnet_key
)) EXECUTE FUNCTION count_updated();
CREATE FUNCTION count_unfolded() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO shared_usage (key, stage, unfolded) SELECT key, stage, sum(change) FROM (
        SELECT unnest(new.keys) AS key, new.stage, new.unfolded AS change
        UNION ALL SELECT unnest(old.keys), old.stage, -old.unfolded) AS c
    GROUP BY key, stage HAVING sum(change) <> 0;
    RETURN NULL;
END $$;
CREATE TRIGGER outcomes_inserted AFTER INSERT ON launch_config_outcomes FOR EACH ROW
WHEN (new.unfolded > 0) EXECUTE FUNCTION count_unfolded();
CREATE TRIGGER outcomes_updated AFTER UPDATE ON launch_config_outcomes FOR EACH ROW
WHEN ((old.unfolded, old.keys) IS DISTINCT FROM (new.unfolded, new.keys)) EXECUTE FUNCTION count_unfolded();
CREATE TRIGGER outcomes_deleted AFTER DELETE ON launch_config_outcomes FOR EACH ROW
WHEN (old.unfolded > 0) EXECUTE FUNCTION count_unfolded();
CREATE FUNCTION spend_of(w worker) RETURNS TABLE (
    price numeric, at timestamptz, live int, began int, ended int, seconds numeric
) LANGUAGE sql STABLE AS $$
    SELECT b.price, date_bin(b.minute_seconds * interval '5 s', p.at, timestamptz '2000-01-01 00:00+00'),
        p.live, p.began, p.ended, (p.ended - p.began) * extract(epoch FROM p.at)
    FROM (SELECT * FROM launch_batch WHERE id = w.batch_id LIMIT 1) AS b CROSS JOIN LATERAL (
        SELECT b.started_at, 1, 0, 0 WHERE w.state NOT IN ('stopped')
        UNION ALL SELECT least(b.started_at, w.ended_at - b.minute_seconds * interval '1 s'), 0, 1, 0 WHERE w.state IN ('stopped') AND w.instance_id IS NOT NULL AND w.ended_at IS NOT NULL
        UNION ALL SELECT w.ended_at, 0, 0, 1 WHERE w.state IN ('stopped') AND w.instance_id IS NOT NULL AND w.ended_at IS NOT NULL
    ) AS p (at, live, began, ended)
$$;
CREATE FUNCTION count_spend() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO spend_usage (account_id, pool_id, price, at, live, began, ended, seconds)
    SELECT c.account_id, p.pool_id, c.price, c.at, sum(sign * live), sum(sign * began), sum(sign * ended), sum(sign * seconds)
    FROM (SELECT 1 AS sign, new.account_id, new.pool_id, s.* FROM spend_of(new) AS s
        UNION ALL SELECT -1, old.account_id, old.pool_id, s.* FROM spend_of(old) AS s) AS c
    CROSS JOIN LATERAL (VALUES (''), (c.pool_id)) AS p (pool_id)
    GROUP BY 1, 2, 3, 4 HAVING sum(sign * live) <> 0 OR sum(sign * began) <> 0 OR sum(sign * ended) <> 0 OR sum(sign * seconds) <> 0;
    RETURN NULL;
END $$;
CREATE TRIGGER spend_inserted AFTER INSERT ON worker FOR EACH ROW
WHEN (new.batch_id IS NOT NULL) EXECUTE FUNCTION count_spend();
CREATE TRIGGER spend_updated AFTER UPDATE OF state, batch_id, instance_id, ended_at ON worker FOR EACH ROW
WHEN (old.batch_id IS DISTINCT FROM new.batch_id OR (new.batch_id IS NOT NULL
    AND (old.state IN ('stopped') OR new.state IN ('stopped'))))
EXECUTE FUNCTION count_spend();
CREATE TRIGGER spend_deleted AFTER DELETE ON worker FOR EACH ROW
WHEN (old.batch_id IS NOT NULL AND old.state NOT IN ('stopped')) EXECUTE FUNCTION count_spend();
CREATE FUNCTION wake_waiting() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO dirty_pool (pool_id, reason) SELECT pool_id, 'headroom' FROM waiting_pool
    WHERE (key, stage) = (new.key, new.stage)
    ORDER BY waiting_since, pool_id LIMIT 2 * -(new.in_flight + new.unfolded);
    RETURN NULL;
END $$;
CREATE TRIGGER headroom_freed AFTER INSERT ON shared_usage FOR EACH ROW
WHEN (new.in_flight + new.unfolded < 0) EXECUTE FUNCTION wake_waiting();
CREATE FUNCTION claim_dirty(
    timeout text, most integer, launching_seconds float8,
    OUT claimed_id text, OUT reasons text[], OUT since timestamptz, OUT more boolean
) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
    claimed text[];
BEGIN
    PERFORM set_config('lock_timeout', timeout, true), set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true);
    claimed := ARRAY(
        SELECT p.id FROM dirty_pool d JOIN worker_pool p ON p.id = d.pool_id
        WHERE d.due_at <= (SELECT slipway_clock())
            AND (SELECT EXISTS (SELECT FROM incarnation WHERE server = slipway_server() AND requested IS NULL))
            AND NOT EXISTS (
                SELECT FROM worker w JOIN launch_config c ON c.id = w.launch_config_id AND c.state = 'active'
                WHERE w.pool_id = p.id AND w.state IN ('requested') AND w.lease_id IS NOT NULL
                    AND w.requested_at > (SELECT slipway_clock()) - launching_seconds * interval '1 s'
                    AND w.requested_at <= (SELECT slipway_clock()))
        ORDER BY d.due_at, d.id LIMIT most FOR UPDATE OF p SKIP LOCKED);
    RETURN QUERY WITH unmarked AS (
        DELETE FROM dirty_pool WHERE pool_id = ANY(claimed) AND due_at <= slipway_clock()
        RETURNING pool_id, reason, coalesce(dirty_since, due_at) AS dirty_since)
    SELECT c.id, coalesce(array_agg(u.reason) FILTER (WHERE u.reason IS NOT NULL), '{}'), min(u.dirty_since),
        coalesce(slipway_clock() >= (SELECT min(due_at) FROM dirty_pool WHERE pool_id <> ALL(claimed)), false)
    FROM (SELECT id, min(place) AS place FROM unnest(claimed) WITH ORDINALITY AS g (id, place) GROUP BY id) AS c
    LEFT JOIN unmarked u ON u.pool_id = c.id GROUP BY c.id, c.place ORDER BY c.place;
END $$;
CREATE FUNCTION lock_shared(pool_id text, dirty_since timestamptz, units bigint, window_max bigint, keys text[])
RETURNS TABLE (
    kind text, key text, stage text, size int, in_flight int, unfolded int, counter_rows int,
    tripped boolean, reason text, unconfirmed int, forgiven int,
    waiting_since timestamptz, waiting_units int, others int, ahead int, rivals int
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM shared_window w WHERE w.key = ANY(keys) ORDER BY w.key, w.stage FOR UPDATE;
    RETURN QUERY WITH mine AS MATERIALIZED (
    SELECT DISTINCT k.kind, k.key, k.stage FROM launch_config c CROSS JOIN LATERAL shared_keys(c) AS k
    WHERE c.pool_id = $1 AND c.state <> 'archived'), dirty AS MATERIALIZED (
    SELECT DISTINCT d.pool_id, k.key FROM (
        SELECT pool_id FROM dirty_pool WHERE due_at <= (SELECT slipway_clock()) ORDER BY due_at, id LIMIT 100) AS d
    JOIN launch_config c ON c.pool_id = d.pool_id AND c.state = 'active'
    CROSS JOIN LATERAL (VALUES (c.image_key), (c.quota_key), (c.capacity_key), (c.subnet_key)) AS k (key)
    WHERE d.pool_id <> $1)
SELECT m.kind, m.key, m.stage, s.size,
    coalesce(u.in_flight, 0) AS in_flight, coalesce(u.unfolded, 0) AS unfolded,
    coalesce(u.counter_rows, 0) AS counter_rows,
    coalesce(s.state = 'tripped', false) AS tripped, coalesce(s.reason, '') AS reason,
    coalesce(s.unconfirmed, 0) AS unconfirmed, coalesce(f.unconfirmed, 0) AS forgiven,
    w.waiting_since, coalesce(w.units, 0) AS waiting_units, o.others, (
        SELECT count(*)::int FROM (
            SELECT FROM waiting_pool o WHERE (o.key, o.stage) = (m.key, m.stage) AND o.pool_id <> $1
                AND (o.waiting_since, o.pool_id) < (coalesce(w.waiting_since, $2::timestamptz), $1)
            LIMIT 2::bigint * greatest(1, s.size)) AS o) AS ahead, CASE
        WHEN least($4, coalesce(s.size, 0)) - coalesce(u.in_flight + u.unfolded, 0)
            <= $3::bigint * (o.others + 100)
        THEN (SELECT count(*)::int FROM dirty d WHERE d.key = m.key AND NOT EXISTS (
            SELECT FROM waiting_pool o WHERE (o.pool_id, o.key, o.stage) = (d.pool_id, m.key, m.stage))) ELSE 0 END AS rivals
FROM mine m LEFT JOIN shared_window s USING (key, stage)
LEFT JOIN (
    SELECT key, stage, sum(in_flight)::int AS in_flight, sum(unfolded)::int AS unfolded, count(*)::int AS counter_rows
    FROM shared_usage WHERE key = ANY(ARRAY(SELECT key FROM mine)) GROUP BY key, stage) AS u USING (key, stage)
LEFT JOIN forgiven f ON f.pool_id = $1 AND f.key = m.key AND f.stage = m.stage
LEFT JOIN waiting_pool w ON w.pool_id = $1 AND w.key = m.key AND w.stage = m.stage
CROSS JOIN LATERAL (
    SELECT count(*)::int AS others FROM (
        SELECT FROM waiting_pool o WHERE (o.key, o.stage) = (m.key, m.stage) AND o.pool_id <> $1
        LIMIT greatest(1, s.size)) AS o) AS o
ORDER BY m.key, m.stage;
END $$;
CREATE FUNCTION mark_short(pool_ids text[], reason text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    free text[] := ARRAY(SELECT id FROM worker_pool WHERE id = ANY(pool_ids) FOR SHARE SKIP LOCKED);
BEGIN
    INSERT INTO dirty_pool (pool_id, reason) SELECT given.id, mark_short.reason FROM unnest(pool_ids) AS given (id)
    WHERE given.id <> ALL(free) OR EXISTS (SELECT FROM pool_balance b WHERE b.pool_id = given.id AND b.short)
    ORDER BY given.id;
END $$;
CREATE FUNCTION lock_calls(batch_ids uuid[], timeout text, OUT call_id uuid, OUT called account, OUT intent worker)
RETURNS SETOF record LANGUAGE plpgsql AS $$ BEGIN
    PERFORM set_config('lock_timeout', coalesce(timeout, current_setting('lock_timeout')), true),
        set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true);
    PERFORM FROM launch_batch WHERE id = ANY(batch_ids) AND state = 'calling' ORDER BY id FOR UPDATE;
    PERFORM FROM worker WHERE batch_id = ANY(batch_ids) ORDER BY id FOR UPDATE;
    RETURN QUERY SELECT b.id, a, w FROM launch_batch b LEFT JOIN account a ON a.id = b.account_id
        LEFT JOIN worker w ON w.batch_id = b.id
        WHERE b.id = ANY(batch_ids) AND b.state = 'calling' ORDER BY b.id, w.id;
END $$;
CREATE FUNCTION lock_leases(lease_ids text[], request_ids text[]) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    PERFORM FROM lease WHERE id = ANY(lease_ids) ORDER BY id FOR UPDATE;
    PERFORM FROM lease_request WHERE id = ANY(request_ids) ORDER BY id FOR UPDATE;
END $$;
CREATE FUNCTION lock_starts(lease_ids text[], OUT leased lease, OUT intent worker, OUT limited boolean)
RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
    shared text[];
    pool text;
    of_account text;
BEGIN
    PERFORM set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true);
    limited := false;
    IF cardinality(lease_ids) = 1 THEN
        SELECT ARRAY[l.id], c.pool_id, c.account_id INTO shared, pool, of_account
        FROM lease l, worker_pool p, launch_config_name n, launch_config c, launch_stop_guard g
        WHERE l.id = lease_ids[1] AND c.id = l.launch_config_id AND p.id = c.pool_id AND n.name = c.name
        FOR SHARE OF p, n, c, g;
        PERFORM FROM launch_limit WHERE scope = 'account' AND scope_id = of_account FOR UPDATE;
        limited := FOUND;
        PERFORM FROM launch_limit WHERE scope = 'pool' AND scope_id = pool FOR UPDATE;
        limited := limited OR FOUND;
    ELSE
        shared := ARRAY(
            SELECT l.id FROM lease l, worker_pool p, launch_config_name n, launch_config c, launch_stop_guard g
            WHERE l.id = ANY(lease_ids) AND c.id = l.launch_config_id AND p.id = c.pool_id AND n.name = c.name
                AND NOT EXISTS (SELECT FROM launch_limit WHERE scope = 'pool' AND scope_id = c.pool_id)
                AND NOT EXISTS (SELECT FROM launch_limit WHERE scope = 'account' AND scope_id = c.account_id)
            FOR SHARE OF p, n, c, g SKIP LOCKED);
    END IF;
    RETURN QUERY SELECT l, w, lock_starts.limited FROM lease l JOIN worker w ON w.lease_id = l.id
        WHERE l.id = ANY(shared) AND w.lease_id = ANY(shared) AND l.state <> 'ended'
            AND w.state IN ('requested')
        ORDER BY l.id, w.id FOR UPDATE OF l, w SKIP LOCKED;
END $$;
INSERT INTO launch_stop_guard DEFAULT VALUES;
INSERT INTO deployment (id) VALUES ('slipway-' || left(replace(gen_random_uuid()::text, '-', ''), 16));
