"""State of the weight-calculator, its published records, and its journal."""

from alembic import op

from slipway_common.database.migrate import LEADER, execute, messaging

revision = "0001"
down_revision = None

# Bodies are JSON as encoded by the core, stored as text: the same value has the same bytes.
TABLES = """
CREATE TABLE config (key text PRIMARY KEY, body text NOT NULL);     -- declared configs, by id
CREATE TABLE health (key text PRIMARY KEY, body text NOT NULL)      -- rows, by the text of their key
    WITH (fillfactor = 50);
CREATE TABLE boot (key text PRIMARY KEY, body text NOT NULL);       -- boots in progress, by worker id
CREATE TABLE signal (key text PRIMARY KEY, body text NOT NULL);     -- live signals, by their key
CREATE TABLE open_alert (key text PRIMARY KEY, body text NOT NULL);      -- open alerts, by deduplication key

CREATE TABLE refused_signal (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at double precision NOT NULL,
    reason text NOT NULL, body text NOT NULL
);

CREATE TABLE weight (
    id text PRIMARY KEY,                -- of a revision
    name text NOT NULL,
    pool_id text NOT NULL,
    record text NOT NULL,               -- as published
    at double precision NOT NULL,       -- of publication, in seconds since the epoch
    archived boolean NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX weight_pool ON weight (pool_id);

-- One row per turn that changed something. Ranges are [topic, partition, from, to]: `taken` from the log; of these
-- `left_out` had no effect (duplicates, unknown types) and `dead_lettered` became dead letters. `settled` are dead
-- letters of earlier turns that were folded.
CREATE TABLE journal (
    seq bigint PRIMARY KEY,
    epoch bigint NOT NULL,
    at double precision NOT NULL,
    until double precision NOT NULL,    -- timers were fired up to this time
    taken jsonb NOT NULL, left_out jsonb NOT NULL, dead_lettered jsonb NOT NULL, settled jsonb NOT NULL,
    written_at timestamptz NOT NULL DEFAULT slipway_clock()
);
CREATE INDEX journal_written_at ON journal (written_at);
"""


def upgrade() -> None:
    messaging(op)
    execute(op, LEADER)
    execute(op, TABLES)
