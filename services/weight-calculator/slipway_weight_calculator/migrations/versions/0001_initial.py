"""What is known, what of it others were told, and how it came about."""

from alembic import op

from slipway_common.migrate import OWNER, execute, messaging

revision = "0001"
down_revision = None

# The bodies are JSON as the core writes it, kept as text: the same value is the same bytes.
TABLES = """
CREATE TABLE config (key text PRIMARY KEY, body text NOT NULL);     -- declared, by id
CREATE TABLE health (key text PRIMARY KEY, body text NOT NULL)      -- by config id or key of what configs share
    WITH (fillfactor = 50);
CREATE TABLE boot (key text PRIMARY KEY, body text NOT NULL);       -- under way, by worker id
CREATE TABLE signal (key text PRIMARY KEY, body text NOT NULL);     -- live opinions from outside
CREATE TABLE alert (key text PRIMARY KEY, body text NOT NULL);      -- open, by dedup key

CREATE TABLE refused_signal (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at double precision NOT NULL, why text NOT NULL,
    body text NOT NULL
);

CREATE TABLE weight (
    id text PRIMARY KEY,
    pool_id text NOT NULL,
    record text NOT NULL,               -- what others have
    at double precision NOT NULL        -- since when, in seconds since the epoch
) WITH (fillfactor = 50);
CREATE INDEX weight_pool ON weight (pool_id);

-- One row per turn that changed something. Ranges are [topic, partition, from, to]: `taken` of the log; of them
-- `left_out` had no effect (duplicates, unknown types) and `buried` became dead letters; `settled` were dead letters.
CREATE TABLE journal (
    seq bigint PRIMARY KEY,
    epoch bigint NOT NULL,
    at double precision NOT NULL,
    until double precision NOT NULL,    -- how far time alone was let go on
    taken jsonb NOT NULL, left_out jsonb NOT NULL, buried jsonb NOT NULL, settled jsonb NOT NULL,
    written_at timestamptz NOT NULL DEFAULT slipway_clock()
);
CREATE INDEX journal_written_at ON journal (written_at);
"""


def upgrade() -> None:
    messaging(op)
    execute(op, OWNER)
    execute(op, TABLES)
