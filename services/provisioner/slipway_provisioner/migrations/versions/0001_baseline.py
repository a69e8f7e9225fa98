"""Schema of the provisioner: accounts, pools, configs, workers, batches, leases, demand and decisions."""

from alembic import op

from slipway_common.database.migrate import execute, messaging

revision = "0001"
down_revision = None

TABLES = """
-- A text as one part of a key. Every byte but those of the unreserved characters of RFC 3986 and "@" is encoded.
CREATE FUNCTION percent_encoded(given text) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE WHEN given ~ '^[A-Za-z0-9_.~@-]*$' THEN given ELSE (
        SELECT string_agg(CASE WHEN c ~ '^[A-Za-z0-9_.~@-]$' THEN c ELSE
            regexp_replace(upper(encode(convert_to(c, 'UTF8'), 'hex')), '(..)', '%\\1', 'g') END, '' ORDER BY place)
        FROM regexp_split_to_table(given, '') WITH ORDINALITY AS t (c, place)) END
$$;
-- One row: the id of this deployment. With the id of a batch it is an idempotency token, of which clouds accept 64
-- characters.
CREATE TABLE deployment (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), id text NOT NULL CHECK (length(id) BETWEEN 1 AND 27)
);
INSERT INTO deployment (id) VALUES ('slipway-' || left(replace(gen_random_uuid()::text, '-', ''), 16));
CREATE TABLE account (
    id text PRIMARY KEY, provider text NOT NULL, region text NOT NULL, identity text NOT NULL,
    lease_pool_id text NOT NULL, settings jsonb NOT NULL,
    credential jsonb NOT NULL DEFAULT '{}', -- a reference, never a secret
    limits jsonb NOT NULL DEFAULT '{}',
    request_timeout_seconds double precision, accepted_timeout_seconds double precision, reaped_at timestamptz,
    passes bigint NOT NULL DEFAULT 0, passed_at timestamptz NOT NULL DEFAULT slipway_clock(),
    listing_problem text NOT NULL DEFAULT '',
    protected jsonb NOT NULL DEFAULT '{}', -- instances that it refuses to terminate, with reasons
    -- It refuses so many terminations that nothing is launched there.
    refuses_terminations boolean NOT NULL DEFAULT false,
    silent boolean NOT NULL DEFAULT false, -- its unresponsive workers are kept until a person confirms
    unanswered_since timestamptz, unreachable boolean NOT NULL DEFAULT false, retired boolean NOT NULL DEFAULT false,
    throttled_since timestamptz, throttled_at timestamptz, throttled_calls bigint NOT NULL DEFAULT 0,
    throttled boolean NOT NULL DEFAULT false, -- a notice says so
    owner text NOT NULL DEFAULT '', spec jsonb NOT NULL DEFAULT '{}',
    spec_digest text NOT NULL DEFAULT '', removed boolean NOT NULL DEFAULT false,
    check_began_at timestamptz, checked_at timestamptz, findings jsonb NOT NULL DEFAULT '[]'
);
CREATE TABLE worker_pool (
    id text PRIMARY KEY, min_capacity integer NOT NULL CHECK (min_capacity >= 0),
    max_capacity integer NOT NULL CHECK (max_capacity >= min_capacity), scaling_ratio text NOT NULL,
    mode text NOT NULL, profile text NOT NULL, boot_evidence text NOT NULL, claim_evidence text NOT NULL,
    on_bad_image text NOT NULL, freeze_after integer NOT NULL,
    paused boolean NOT NULL DEFAULT false, paused_reason text NOT NULL DEFAULT '',
    paused_by text NOT NULL DEFAULT '', paused_until timestamptz, frozen boolean NOT NULL DEFAULT false,
    frozen_reason text NOT NULL DEFAULT '', frozen_by text NOT NULL DEFAULT '',
    deleted boolean NOT NULL DEFAULT false, drawn bigint NOT NULL DEFAULT 0, revision bigint NOT NULL DEFAULT 1,
    swept_at timestamptz NOT NULL DEFAULT slipway_clock(), attempted_at timestamptz,
    age_alerted boolean NOT NULL DEFAULT false, -- on workers at their maximum age that nothing could replace
    limits jsonb NOT NULL DEFAULT '{}',
    owner text NOT NULL DEFAULT '', spec jsonb NOT NULL DEFAULT '{}', spec_digest text NOT NULL DEFAULT ''
);
CREATE INDEX worker_pool_deleted ON worker_pool (id) WHERE deleted;
CREATE INDEX worker_pool_paused ON worker_pool (paused_until) WHERE paused;
CREATE INDEX worker_pool_swept ON worker_pool (swept_at) WHERE NOT deleted;
CREATE TABLE pool_revision (
    pool_id text NOT NULL REFERENCES worker_pool, revision bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT slipway_clock(), by text NOT NULL, action text NOT NULL,
    reason text NOT NULL DEFAULT '', to_revision bigint, owner text NOT NULL, revisions jsonb NOT NULL,
    spec jsonb NOT NULL, spec_digest text NOT NULL, changes jsonb NOT NULL, PRIMARY KEY (pool_id, revision)
);
CREATE TABLE launch_config_name (
    name text PRIMARY KEY, pool_id text NOT NULL REFERENCES worker_pool, current_id text NOT NULL,
    base_weight double precision NOT NULL, price_factor double precision NOT NULL, max_capacity integer,
    deadlines jsonb NOT NULL DEFAULT '{}', -- as declared, in seconds by name
    task_slots integer NOT NULL DEFAULT 1,
    paused boolean NOT NULL DEFAULT false, paused_reason text NOT NULL DEFAULT '',
    paused_by text NOT NULL DEFAULT '', paused_until timestamptz, declared boolean NOT NULL DEFAULT true
);
CREATE INDEX launch_config_name_pool ON launch_config_name (pool_id);
CREATE INDEX launch_config_name_paused ON launch_config_name (paused_until) WHERE paused;
-- By which the shortest deadline of any worker is found. Written with declarations only.
CREATE INDEX launch_config_name_registration ON launch_config_name (
    ((deadlines ->> 'registration_seconds')::double precision));
CREATE INDEX launch_config_name_first_claim ON launch_config_name (
    ((deadlines ->> 'first_claim_seconds')::double precision));
CREATE INDEX launch_config_name_idle_despite_demand ON launch_config_name (
    ((deadlines ->> 'idle_despite_demand_seconds')::double precision));
CREATE INDEX launch_config_name_unresponsive ON launch_config_name (
    ((deadlines ->> 'unresponsive_seconds')::double precision));
-- Sources whose pause requests exceeded their share of a pool, until the refused pauses would have ended. The holder of
-- the share is a source that operators have named, or empty for all others together.
CREATE TABLE refused_pause (
    pool_id text NOT NULL, holder text NOT NULL, until timestamptz NOT NULL, PRIMARY KEY (pool_id, holder)
);
-- The health settings in force are stored with each config: its own profile or its pool's; the others are its pool's.
-- `capacity` and `quota_family` are what the provider names otherwise than by account, region, zone and instance type,
-- `subnet` is the one that the machines use, if the provider names it, `image` the image by its provider's id.
CREATE TABLE launch_config (
    id text PRIMARY KEY, name text NOT NULL REFERENCES launch_config_name, digest text NOT NULL,
    pool_id text NOT NULL REFERENCES worker_pool, account_id text NOT NULL REFERENCES account,
    region text NOT NULL, zone text NOT NULL, instance_type text NOT NULL, image_revision text NOT NULL,
    settings jsonb NOT NULL, user_data text NOT NULL DEFAULT '',
    profile text NOT NULL, boot_evidence text NOT NULL, claim_evidence text NOT NULL, on_bad_image text NOT NULL,
    freeze_after integer NOT NULL,
    state text NOT NULL CHECK (state IN ('active', 'draining', 'archived')),
    state_reason text NOT NULL DEFAULT '', state_by text NOT NULL DEFAULT '', replaced_by text NOT NULL DEFAULT '',
    proven_at timestamptz, starts_before bigint NOT NULL DEFAULT 0,
    drain_seconds double precision, drain_from timestamptz, drain_until timestamptz,
    drain_terminate boolean NOT NULL DEFAULT false, drain_alerted boolean NOT NULL DEFAULT false,
    withdrawn_at timestamptz,
    declared_at timestamptz NOT NULL DEFAULT slipway_clock(), archived_at timestamptz,
    revision bigint NOT NULL DEFAULT 1,
    capacity text NOT NULL DEFAULT '', quota_family text NOT NULL DEFAULT '', subnet text NOT NULL DEFAULT '',
    image text NOT NULL DEFAULT '',
    image_key text NOT NULL GENERATED ALWAYS AS ('image/' || percent_encoded(
        CASE WHEN image <> '' THEN image ELSE image_revision END)) STORED,
    quota_key text NOT NULL GENERATED ALWAYS AS ('quota/' || percent_encoded(account_id) || '/' ||
        percent_encoded(region) || '/' || percent_encoded(
            CASE WHEN quota_family <> '' THEN quota_family ELSE split_part(instance_type, '.', 1) END)) STORED,
    credential_key text NOT NULL GENERATED ALWAYS AS ('credential/' || percent_encoded(account_id)) STORED,
    capacity_key text NOT NULL GENERATED ALWAYS AS ('capacity/' || CASE WHEN capacity <> '' THEN capacity
        ELSE percent_encoded(account_id) || '/' || percent_encoded(region) || '/' || percent_encoded(zone) || '/' ||
            percent_encoded(instance_type) || CASE settings ->> 'lifecycle' WHEN 'spot' THEN '/spot'
                ELSE '/on-demand' END END) STORED,
    subnet_key text NOT NULL GENERATED ALWAYS AS (CASE WHEN subnet <> '' THEN 'quota/' || percent_encoded(account_id) ||
        '/' || percent_encoded(region) || '/subnet/' || percent_encoded(subnet) ELSE '' END) STORED
);
CREATE INDEX launch_config_pool ON launch_config (pool_id) WHERE state <> 'archived';
CREATE INDEX launch_config_of_name ON launch_config (name);
CREATE INDEX launch_config_account ON launch_config (account_id, declared_at) WHERE state <> 'archived';
CREATE INDEX launch_config_draining ON launch_config (drain_from) WHERE state = 'draining';
CREATE INDEX launch_config_fallback ON launch_config (name) WHERE state = 'active' AND replaced_by <> '';
CREATE INDEX launch_config_alerted ON launch_config (id) WHERE drain_alerted;
CREATE INDEX launch_config_archived ON launch_config (archived_at) WHERE state = 'archived';
CREATE INDEX launch_config_image ON launch_config (image_key) WHERE state <> 'archived';
CREATE INDEX launch_config_quota ON launch_config (quota_key) WHERE state <> 'archived';
CREATE INDEX launch_config_credential ON launch_config (credential_key) WHERE state <> 'archived';
CREATE INDEX launch_config_capacity ON launch_config (capacity_key) WHERE state <> 'archived';
CREATE INDEX launch_config_subnet ON launch_config (subnet_key) WHERE state <> 'archived';
-- Shares of a config. Claims without claim evidence have no share.
CREATE FUNCTION shared_keys(c launch_config) RETURNS TABLE (kind text, key text, stage text)
LANGUAGE sql IMMUTABLE AS $$
    SELECT k.kind, k.key, k.stage FROM (VALUES
        ('image', c.image_key, 'boot'), ('image', c.image_key, 'claim'), ('image', c.image_key, 'launch'),
        ('quota', c.quota_key, 'launch'), ('credential', c.credential_key, 'launch'),
        ('capacity', c.capacity_key, 'launch'), ('quota', c.subnet_key, 'launch')
    ) AS k (kind, key, stage) WHERE k.key <> '' AND (k.stage <> 'claim' OR c.claim_evidence <> 'none')
$$;
-- Keys of the shared windows that a stage of a config fills. Shares without a window limit nothing.
CREATE FUNCTION window_keys(c launch_config, of text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(k.key ORDER BY k.key), '{}') FROM shared_keys(c) AS k
    WHERE k.stage = of AND (k.kind, k.stage) IN (
        ('image', 'boot'), ('image', 'claim'), ('quota', 'launch'), ('capacity', 'launch'))
$$;
-- Time of the newest pass over the deadlines of workers, and of the one before it. Between two passes far apart no
-- report could be received: that time is downtime.
CREATE TABLE deadline_pass (
    id boolean PRIMARY KEY DEFAULT true CHECK (id), at timestamptz NOT NULL, previous_at timestamptz
);
-- Found by its end, so that a deadline costs no more with a year of downtimes.
CREATE TABLE downtime (from_at timestamptz NOT NULL, until_at timestamptz PRIMARY KEY);
-- Uptime from a time to the newest pass, in seconds. It ends at the pass and not now: downtime that follows the pass is
-- not known before the next one.
CREATE FUNCTION uptime_since(since timestamptz) RETURNS double precision LANGUAGE sql STABLE AS $$
    SELECT extract(epoch FROM p.at - since)::float8 - coalesce((
        SELECT sum(extract(epoch FROM d.until_at - greatest(d.from_at, since)))::float8
        FROM downtime d WHERE d.until_at > since), 0)
    FROM deadline_pass p
$$;

-- Outcomes of stages over a config's life. Successes are counted for launches only, once per call: a row that each
-- registration and first claim locks would serialize them. `folded`: failures in the newest weight record.
-- `written_off`: failures that will never be folded into a weight. `unfolded_since`: time of the first consecutive
-- sweep that found unfolded failures; reset by a new failure. `keys`: those of the shared windows that they fill.
CREATE TABLE launch_config_outcomes (
    launch_config_id text NOT NULL REFERENCES launch_config, stage text NOT NULL, failures bigint NOT NULL DEFAULT 0,
    successes bigint NOT NULL DEFAULT 0, folded bigint NOT NULL DEFAULT 0, written_off bigint NOT NULL DEFAULT 0,
    unfolded bigint NOT NULL GENERATED ALWAYS AS (greatest(0, failures - written_off - folded)) STORED,
    unfolded_since timestamptz, keys text[] NOT NULL DEFAULT '{}', PRIMARY KEY (launch_config_id, stage)
);
-- Newest state of each share in the weight records, without a `size` before the first. A planner that launches on a
-- key locks it, since other pools share it.
CREATE TABLE shared_window (
    key text NOT NULL, stage text NOT NULL, version bigint NOT NULL DEFAULT 0, size integer,
    state text NOT NULL DEFAULT 'healthy' CHECK (state IN ('healthy', 'tripped')),
    unconfirmed integer NOT NULL DEFAULT 0, reason text NOT NULL DEFAULT '', PRIMARY KEY (key, stage)
);
-- Live workers of a config, and its starts in flight per stage.
CREATE TABLE config_usage (
    pool_id text NOT NULL, launch_config_id text NOT NULL, launch integer NOT NULL DEFAULT 0,
    boot integer NOT NULL DEFAULT 0, claim integer NOT NULL DEFAULT 0, running integer NOT NULL DEFAULT 0,
    serving integer NOT NULL DEFAULT 0, leaving integer NOT NULL DEFAULT 0, stuck integer NOT NULL DEFAULT 0,
    stranded integer NOT NULL DEFAULT 0, marked integer NOT NULL DEFAULT 0
);
CREATE INDEX config_usage_config ON config_usage (pool_id, launch_config_id);
-- Starts in flight of a shared window, those of earlier stages included, and failures not yet folded into a weight.
CREATE TABLE shared_usage (
    key text NOT NULL, stage text NOT NULL, in_flight integer NOT NULL DEFAULT 0, unfolded integer NOT NULL DEFAULT 0
);
CREATE INDEX shared_usage_key ON shared_usage (key);
-- Unconfirmed starts of an image at the time a pool was unfrozen: they do not freeze it again.
CREATE TABLE forgiven (
    pool_id text NOT NULL REFERENCES worker_pool, key text NOT NULL, stage text NOT NULL, unconfirmed integer NOT NULL,
    PRIMARY KEY (pool_id, key, stage)
);
CREATE TABLE weight (
    launch_config_id text PRIMARY KEY, revision bigint NOT NULL, record jsonb NOT NULL,
    received_at timestamptz NOT NULL DEFAULT slipway_clock()
);
CREATE INDEX weight_received ON weight (received_at);
-- One row that every start statement locks FOR SHARE and every launch stop FOR UPDATE, so that no start misses a stop.
CREATE TABLE launch_stop_guard (id boolean PRIMARY KEY DEFAULT true CHECK (id));
INSERT INTO launch_stop_guard DEFAULT VALUES;
-- Scope `restore`: until a person confirms the state of a restored database; no command that starts launching lifts it.
CREATE TABLE launch_stop (
    scope text NOT NULL CHECK (scope IN ('all', 'account', 'pool', 'restore')), scope_id text NOT NULL,
    reason text NOT NULL, by text NOT NULL, until timestamptz, at timestamptz NOT NULL DEFAULT slipway_clock(),
    PRIMARY KEY (scope, scope_id)
);
-- Safety limits of an account or a pool that declares some. Every start and repeat of a call under them locks the row.
-- `alerted`: the limit that was reached, and `limited_at`: when it last stopped a launch. `forgotten`: launches and
-- spend that a restored database is assumed to have lost, since then.
CREATE TABLE launch_limit (
    scope text NOT NULL CHECK (scope IN ('account', 'pool')), scope_id text NOT NULL,
    launches_per_hour integer, spend_per_day numeric, lifetime_seconds double precision NOT NULL,
    default_price numeric, alerted text NOT NULL DEFAULT '', limited_at timestamptz, forgotten_at timestamptz,
    forgotten_launches integer NOT NULL DEFAULT 0, forgotten_spend numeric NOT NULL DEFAULT 0,
    PRIMARY KEY (scope, scope_id)
);
CREATE TABLE demand (
    pool_id text NOT NULL REFERENCES worker_pool, source text NOT NULL,
    pending integer NOT NULL CHECK (pending >= 0), claimed integer CHECK (claimed >= 0),
    observed_at timestamptz NOT NULL, valid_for_seconds double precision NOT NULL, pending_since timestamptz,
    claimed_seen_at timestamptz,
    received_at timestamptz NOT NULL DEFAULT slipway_clock(), reported_by text NOT NULL DEFAULT '',
    traceparent text NOT NULL DEFAULT '',
    alerted boolean NOT NULL DEFAULT false, -- that it is stale
    ended_at timestamptz, end_reason text NOT NULL DEFAULT '',
    PRIMARY KEY (pool_id, source)
);
CREATE INDEX demand_ended ON demand (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE lease_request (
    id text PRIMARY KEY, lease_pool_id text NOT NULL, pool_id text NOT NULL, launch_config_id text NOT NULL,
    units integer NOT NULL, sent_at timestamptz NOT NULL DEFAULT slipway_clock(), traceparent text NOT NULL
);
CREATE INDEX lease_request_sent ON lease_request (sent_at);
CREATE TABLE lease (
    id text PRIMARY KEY, request_id text NOT NULL, lease_pool_id text NOT NULL, launch_config_id text NOT NULL,
    fencing_token bigint NOT NULL, units integer NOT NULL,
    state text NOT NULL CHECK (state IN ('reserved', 'confirmed', 'unleased', 'ended')),
    expires_at timestamptz NOT NULL, hold_until timestamptz NOT NULL, ttl_seconds double precision,
    renewed_at timestamptz NOT NULL DEFAULT slipway_clock(), traceparent text NOT NULL,
    granted_units integer NOT NULL DEFAULT 0, -- 0: an unleased launch
    granted_at timestamptz NOT NULL DEFAULT slipway_clock()
);
CREATE INDEX lease_live ON lease (renewed_at) WHERE state <> 'ended';
CREATE INDEX lease_ended ON lease (renewed_at) WHERE state = 'ended';
CREATE INDEX lease_granted ON lease (lease_pool_id, granted_at) WHERE granted_units > 0;
CREATE TABLE unleased_pace (
    lease_pool_id text PRIMARY KEY, next_at timestamptz -- earliest time of the next unleased launch
);
CREATE TABLE provider_bucket (bucket text PRIMARY KEY, full_at timestamptz NOT NULL);
CREATE TABLE launch_batch (
    id uuid PRIMARY KEY, launch_config_id text NOT NULL, pool_id text NOT NULL DEFAULT '', account_id text NOT NULL,
    lease_id text NOT NULL, token text NOT NULL UNIQUE, body jsonb NOT NULL, units integer NOT NULL,
    state text NOT NULL CHECK (state IN ('calling', 'known')), outcome text NOT NULL DEFAULT '',
    repeats integer NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT slipway_clock(), call_deadline timestamptz NOT NULL,
    timeout_seconds double precision NOT NULL DEFAULT 0, visibility_seconds double precision NOT NULL DEFAULT 0,
    repeatable boolean NOT NULL DEFAULT false, called_at timestamptz NOT NULL DEFAULT slipway_clock(),
    called_seconds double precision NOT NULL DEFAULT 0, handle text NOT NULL DEFAULT '', poll_at timestamptz,
    known_at timestamptz, charged integer NOT NULL DEFAULT 0, unproven integer NOT NULL DEFAULT 0, price numeric
);
CREATE INDEX launch_batch_accepted ON launch_batch (poll_at) WHERE state = 'calling' AND handle <> '';
CREATE INDEX launch_batch_calling ON launch_batch (call_deadline) WHERE state = 'calling';
CREATE INDEX launch_batch_known ON launch_batch (known_at) WHERE state = 'known';
CREATE INDEX launch_batch_charged ON launch_batch (account_id, known_at) WHERE state = 'known' AND charged > 0;
-- The keys of a worker's shared windows, whether its account is not called and whether its first claim is awaited are
-- copies, so that its counters depend on nothing but its row: those are changed in the transactions of their originals.
CREATE TABLE worker (
    id uuid PRIMARY KEY, pool_id text NOT NULL, launch_config_id text NOT NULL, account_id text NOT NULL,
    image_revision text NOT NULL, state text NOT NULL, decision_id uuid NOT NULL, probe_permit bigint,
    request_id text, lease_id text, holds_unit boolean NOT NULL DEFAULT false, batch_id uuid, instance_id text,
    token_sha256 text, token_used boolean NOT NULL DEFAULT false, not_before timestamptz,
    requested_at timestamptz NOT NULL, launched_at timestamptz, registered_at timestamptz,
    first_claimed_at timestamptz, idle_since timestamptz, last_seen_at timestamptz,
    -- Start of the five minutes of the last contact, found by an index, which four of five heartbeats do not write.
    contact_period timestamptz GENERATED ALWAYS AS (
        date_bin(interval '5 min', last_seen_at, timestamptz '2000-01-01 00:00+00')) STORED,
    stopping_at timestamptz, may_finish boolean NOT NULL DEFAULT false,
    leave_after_task boolean NOT NULL DEFAULT false, drain_until timestamptz,
    termination_refusals integer NOT NULL DEFAULT 0, termination_refused_at timestamptz, stuck_at timestamptz,
    notice text NOT NULL DEFAULT '', task_slots integer NOT NULL DEFAULT 1,
    ended_at timestamptz, failed_at timestamptz,
    termination_requested_at timestamptz, reason text NOT NULL DEFAULT '', traceparent text NOT NULL,
    image_key text NOT NULL DEFAULT '', quota_key text NOT NULL DEFAULT '', capacity_key text NOT NULL DEFAULT '',
    subnet_key text NOT NULL DEFAULT '', awaits_claim boolean NOT NULL DEFAULT false,
    account_unreachable boolean NOT NULL DEFAULT false,
    UNIQUE (account_id, instance_id)
);
CREATE INDEX worker_live ON worker (pool_id, launch_config_id, state) WHERE state <> 'stopped';
-- By which workers past a deadline are found, each by the time since when it counts.
CREATE INDEX worker_booting ON worker (launched_at) WHERE state = 'starting';
CREATE INDEX worker_idle ON worker (pool_id, idle_since) WHERE state = 'running' AND idle_since IS NOT NULL;
CREATE INDEX worker_contact ON worker (contact_period) WHERE state <> 'stopped';
CREATE INDEX worker_stopping ON worker (
    coalesce(CASE WHEN registered_at IS NULL THEN timestamptz '-infinity' END, stopping_at))
    WHERE state = 'stopping' AND instance_id IS NOT NULL;
CREATE INDEX worker_draining ON worker (drain_until) WHERE state <> 'stopped' AND drain_until IS NOT NULL;
CREATE INDEX worker_live_instance ON worker (account_id, instance_id) WHERE state <> 'stopped';
CREATE INDEX worker_request ON worker (request_id) WHERE state = 'requested';
CREATE INDEX worker_lease ON worker (lease_id) WHERE state = 'requested' AND lease_id IS NOT NULL;
CREATE INDEX worker_batch ON worker (batch_id);
CREATE INDEX worker_failed ON worker (launch_config_id, failed_at DESC) WHERE failed_at IS NOT NULL;
CREATE INDEX worker_leaving ON worker (pool_id) WHERE state = 'stopping';
-- Those of which the queue may confirm the first claim.
CREATE INDEX worker_unclaimed ON worker (pool_id)
    WHERE state = 'running' AND awaits_claim AND first_claimed_at IS NULL;
CREATE INDEX worker_marked ON worker (pool_id) WHERE state = 'running' AND leave_after_task;
CREATE INDEX worker_refused ON worker (account_id) WHERE state <> 'stopped' AND termination_refusals > 0;
CREATE INDEX worker_ended ON worker (ended_at) WHERE state = 'stopped';
CREATE INDEX worker_ran ON worker (account_id, ended_at) WHERE state = 'stopped' AND instance_id IS NOT NULL;
-- Workers of failed calls, by which the sweep proves the counters of a pool.
CREATE INDEX worker_unlaunched ON worker (pool_id)
    WHERE state = 'stopped' AND launched_at IS NULL AND registered_at IS NULL;
CREATE UNIQUE INDEX worker_probe ON worker (launch_config_id, probe_permit) WHERE probe_permit IS NOT NULL;
-- Machines that may still run in a retired account: those of stopping workers, and one for each intent of an unknown
-- call, without an instance id. A reaper pass over the account deletes what it does not list.
CREATE TABLE unreachable_machine (
    worker_id uuid PRIMARY KEY, account_id text NOT NULL, pool_id text NOT NULL, launch_config_id text NOT NULL,
    batch_id uuid, instance_id text, since timestamptz NOT NULL DEFAULT slipway_clock()
);
CREATE INDEX unreachable_machine_account ON unreachable_machine (account_id);
CREATE INDEX unreachable_machine_batch ON unreachable_machine (batch_id);
CREATE TABLE claim (
    worker_id uuid NOT NULL, source text NOT NULL, task_id text NOT NULL, claimed_at text NOT NULL,
    pool_id text NOT NULL, reported_at timestamptz NOT NULL, started_at timestamptz NOT NULL, ended_at timestamptz,
    counted boolean NOT NULL DEFAULT true, PRIMARY KEY (worker_id, source, task_id, claimed_at)
);
CREATE INDEX claim_recent ON claim (pool_id, source, ended_at);
CREATE INDEX claim_ended ON claim (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX claim_open ON claim (worker_id) WHERE ended_at IS NULL;
CREATE INDEX claim_worker ON claim (worker_id, ended_at);
-- Orphan instances that wait for a person, as of the newest pass of the instance reaper, and what was decided.
CREATE TABLE orphan_instance (
    account_id text NOT NULL, instance_id text NOT NULL, batch_id text NOT NULL, launch_config_id text NOT NULL,
    created_at timestamptz NOT NULL, found_at timestamptz NOT NULL DEFAULT slipway_clock(), reason text NOT NULL,
    decision text NOT NULL DEFAULT '' CHECK (decision IN ('', 'leave', 'terminate')),
    PRIMARY KEY (account_id, instance_id)
);
CREATE INDEX orphan_instance_batch ON orphan_instance (batch_id);
-- Workers whose instance was not listed in the newest pass of the instance reaper over the account.
CREATE TABLE missing_instance (
    worker_id uuid PRIMARY KEY, account_id text NOT NULL, found_at timestamptz NOT NULL DEFAULT slipway_clock()
);
CREATE INDEX missing_instance_account ON missing_instance (account_id);
-- Console output of one machine of an image that failed to register, fetched when it is due, at most once per image.
CREATE TABLE console_output (
    image_revision text PRIMARY KEY, account_id text NOT NULL, pool_id text NOT NULL, launch_config_id text NOT NULL,
    batch_id uuid NOT NULL, worker_id uuid NOT NULL, instance_id text NOT NULL, reason text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT slipway_clock(), due_at timestamptz DEFAULT slipway_clock(),
    attempts integer NOT NULL DEFAULT 0, settled_at timestamptz, resolved_at timestamptz,
    lines jsonb NOT NULL DEFAULT '[]', problem text NOT NULL DEFAULT ''
);
CREATE INDEX console_output_due ON console_output (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX console_output_requested ON console_output (requested_at);
-- Errors that workers report, and their number per launch config, code and hour, with those that are not stored.
CREATE TABLE worker_error (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT slipway_clock(),
    worker_id uuid NOT NULL, pool_id text NOT NULL, launch_config_id text NOT NULL, image_revision text NOT NULL,
    code text NOT NULL, sample text NOT NULL DEFAULT ''
);
CREATE INDEX worker_error_worker ON worker_error (worker_id, at);
CREATE INDEX worker_error_config ON worker_error (launch_config_id, at);
CREATE TABLE worker_error_hour (
    launch_config_id text NOT NULL, code text NOT NULL, hour timestamptz NOT NULL, pool_id text NOT NULL,
    number integer NOT NULL, PRIMARY KEY (launch_config_id, code, hour)
);
CREATE INDEX worker_error_hour_hour ON worker_error_hour (hour);
CREATE TABLE decision (
    id uuid PRIMARY KEY, pool_id text NOT NULL, at timestamptz NOT NULL, last_at timestamptz NOT NULL,
    times integer NOT NULL DEFAULT 1, launched integer NOT NULL, reason text NOT NULL, details jsonb NOT NULL
);
CREATE INDEX decision_pool ON decision (pool_id, at DESC);
CREATE INDEX decision_at ON decision (at);
-- Append-only: a writer never waits for a planner, and a planner deletes only marks whose changes it can see.
CREATE TABLE dirty_pool (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, pool_id text NOT NULL, reason text NOT NULL,
    due_at timestamptz NOT NULL DEFAULT slipway_clock()
);
CREATE INDEX dirty_pool_pool ON dirty_pool (pool_id, due_at);
-- One row per worker that a Terraform module makes, from its accepted call until its resources are destroyed. `holder`
-- is the run that holds the lock until `locked_until`; each lock has a higher `fence`.
CREATE TABLE workspace (
    id uuid PRIMARY KEY, deployment text NOT NULL, incarnation text NOT NULL, account_id text NOT NULL,
    batch_id uuid NOT NULL, ordinal integer NOT NULL, launch_config_id text NOT NULL,
    phase text NOT NULL CHECK (phase IN ('queued', 'unknown', 'ready', 'destroying', 'orphan', 'gone')),
    holder text NOT NULL DEFAULT '', fence bigint NOT NULL DEFAULT 0, locked_until timestamptz,
    effects_seconds double precision NOT NULL, effects_until timestamptz, due_at timestamptz,
    failed_runs integer NOT NULL DEFAULT 0, interruptions integer NOT NULL DEFAULT 0,
    instance_id text, address text NOT NULL DEFAULT '', outcome jsonb, problem text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT slipway_clock(), refreshed_at timestamptz, ended_at timestamptz,
    UNIQUE (batch_id, ordinal)
);
CREATE INDEX workspace_due ON workspace (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX workspace_account ON workspace (account_id) WHERE phase <> 'gone';
CREATE UNIQUE INDEX workspace_instance ON workspace (account_id, instance_id)
    WHERE phase <> 'gone' AND instance_id IS NOT NULL;
CREATE INDEX workspace_ended ON workspace (ended_at) WHERE phase = 'gone';
-- Encrypted: a state contains the secrets of its resources. `number` tells rejected states apart.
CREATE TABLE workspace_document (
    workspace_id uuid NOT NULL, kind text NOT NULL CHECK (kind IN ('inputs', 'state', 'rejected')),
    number bigint NOT NULL DEFAULT 0, lineage text NOT NULL DEFAULT '', serial bigint NOT NULL DEFAULT 0,
    key_id text NOT NULL, encrypted bytea NOT NULL, reason text NOT NULL DEFAULT '',
    saved_at timestamptz NOT NULL DEFAULT slipway_clock(), PRIMARY KEY (workspace_id, kind, number)
);
CREATE INDEX workspace_document_key ON workspace_document (key_id);
-- One row per account, listed again at `due_at`, or then by another replica. `found` are the resources without a live
-- row as of `listed_at`, when the newest complete listing began; NULL: none since the account or a restore.
CREATE TABLE workspace_listing (
    account_id text PRIMARY KEY, due_at timestamptz NOT NULL DEFAULT slipway_clock(), fence bigint NOT NULL DEFAULT 0,
    listed_at timestamptz, found jsonb NOT NULL DEFAULT '[]', problem text NOT NULL DEFAULT ''
);
-- Balance of fleet and demand, as the plans of a pool have seen it: since when there have been surplus workers, and
-- since when workers have been missing, in a pool that may launch, and none has registered.
CREATE TABLE pool_balance (
    pool_id text PRIMARY KEY, surplus jsonb NOT NULL DEFAULT '{}', missing_since timestamptz,
    starved boolean NOT NULL DEFAULT false
);
CREATE INDEX pool_balance_missing ON pool_balance (missing_since) WHERE missing_since IS NOT NULL;
CREATE INDEX pool_balance_starved ON pool_balance (pool_id) WHERE starved;
-- What a worker adds to the counters of its config. The call of a stopping worker can still fail, but for one that is
-- never answered: the windows that it fills are shared with other accounts.
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
-- Shared windows that a worker fills. Starts of an earlier stage will arrive in the later ones, so they count there
-- too.
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
-- Transition tables have no column list, so a statement trigger would fire for each heartbeat. This one does not.
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
-- Pools whose last plan a shared window has cut: they need `units` more, and take their turns by `waiting_since`.
CREATE TABLE waiting_pool (
    pool_id text NOT NULL, key text NOT NULL, stage text NOT NULL, units integer NOT NULL,
    waiting_since timestamptz NOT NULL, PRIMARY KEY (pool_id, key, stage)
);
CREATE INDEX waiting_pool_turn ON waiting_pool (key, stage, waiting_since, pool_id);
-- A start that frees headroom marks the pools dirty that have waited longest, in its own transaction.
CREATE FUNCTION wake_waiting() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO dirty_pool (pool_id, reason) SELECT pool_id, 'headroom' FROM waiting_pool
    WHERE (key, stage) = (new.key, new.stage)
    ORDER BY waiting_since, pool_id LIMIT 2 * -(new.in_flight + new.unfolded);
    RETURN NULL;
END $$;
CREATE TRIGGER headroom_freed AFTER INSERT ON shared_usage FOR EACH ROW
WHEN (new.in_flight + new.unfolded < 0) EXECUTE FUNCTION wake_waiting();
-- Lock the pool that has been dirty longest and that no planner holds, then delete its marks that are due, in a
-- statement that begins after the lock. The rest of the transaction waits for no lock longer than `timeout`.
CREATE FUNCTION claim_dirty(
    timeout text, OUT claimed_id text, OUT reasons text[], OUT since timestamptz
) LANGUAGE plpgsql AS $$ BEGIN
    SELECT p.id INTO claimed_id FROM dirty_pool d JOIN worker_pool p ON p.id = d.pool_id
    WHERE d.due_at <= slipway_clock()
        AND (SELECT EXISTS (SELECT FROM incarnation WHERE server = slipway_server() AND requested IS NULL))
    ORDER BY d.id LIMIT 1 FOR UPDATE OF p SKIP LOCKED;
    PERFORM set_config('lock_timeout', timeout, true);
    WITH unmarked AS (
        DELETE FROM dirty_pool WHERE pool_id = claimed_id AND due_at <= slipway_clock() RETURNING reason, due_at)
    SELECT coalesce(array_agg(reason), '{}'), min(due_at) INTO reasons, since FROM unmarked;
END $$;
"""


def upgrade() -> None:
    messaging(op)
    execute(op, TABLES)
