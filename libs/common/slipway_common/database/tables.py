"""Tables of every service, and the script that creates a schema from its tables: the baseline of its migrations."""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Double,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.schema import CreateIndex, CreateTable

from slipway_common.database.sql import DIALECT

CLOCK: Final = text("slipway_clock()")
TIME: Final = DateTime(timezone=True)
CREATE_CLOCK: Final = (
    "CREATE FUNCTION slipway_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()'"
)

# Identity of the running server and of this copy of the database in it: another one after a restart, a failover or a
# restore.
CREATE_SERVER: Final = """
CREATE FUNCTION slipway_server() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws('/', extract(epoch FROM pg_postmaster_start_time()), d.oid, to_regclass('incarnation')::oid)
    FROM pg_database d WHERE d.datname = current_database()
$$"""
# Settings for statements that are executed all the time on tables whose rows come and go within seconds: their plans
# are kept, fit any parameters, and find all by indexes. A table that was small when a plan was made would be read as a
# whole once it is large. An index scan marks the entries of rows that are gone, and passes over them from then on; a
# bitmap scan marks none, so that each one reads all that were left since the last vacuum.
PLAN_SETTINGS: Final = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "enable_bitmapscan": "off"}
# The rest of a transaction has these settings.
PLANS_KEPT: Final = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in PLAN_SETTINGS.items())
# Advance the positions of partitions under their epochs, store the sequence numbers of sources, and return what was
# seen of each partition before: at least one row for each, whose `dead` is true if its topic has dead letters. That is
# read in a statement that begins after the lock. No row if a partition has another epoch or position; the caller must
# roll back then. With `keep_plans` the transaction executes its statements by plans that fit any parameters.
ADVANCE: Final = f"""
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
        PERFORM {PLANS_KEPT};
    END IF;
    RETURN QUERY SELECT g.topic, g.partition, s.source, s.sequence_number,
        EXISTS (SELECT FROM dead_letter d WHERE d.topic = g.topic)
    FROM unnest(topics, partitions) AS g (topic, partition)
    LEFT JOIN seen_sequence s ON (s.topic, s.partition) = (g.topic, g.partition);
    INSERT INTO seen_sequence AS s (topic, partition, source, sequence_number)
    SELECT * FROM unnest(numbered_topics, numbered_partitions, sources, numbers)
    ON CONFLICT (topic, partition, source) DO UPDATE
    SET sequence_number = excluded.sequence_number WHERE s.sequence_number < excluded.sequence_number;
END $$"""
DRAW_INCARNATION: Final = """
INSERT INTO incarnation (id, server) VALUES (replace(gen_random_uuid()::text, '-', ''), slipway_server())"""


def uuid(name: str, *constraints: Any, **options: Any) -> Column[str]:
    """UUID column with text values."""
    return Column(name, Uuid(as_uuid=False), *constraints, **options)


def now(name: str) -> Column[Any]:
    """Time of the row's insertion."""
    return Column(name, TIME, nullable=False, server_default=CLOCK)


def audit(metadata: MetaData) -> Table:
    """Add the table of changes that people and pipelines made. Of settings, which may hold secrets, it has digests."""
    table = Table(
        "audit",
        metadata,
        Column("id", BigInteger, Identity(always=True), primary_key=True),
        now("at"),
        Column("by", Text, nullable=False),
        Column("origin", Text, nullable=False),  # address of the request; empty: the service itself
        Column("action", Text, nullable=False),
        Column("reason", Text, nullable=False),
        Column("kind", Text, nullable=False),
        Column("subject_id", Text, nullable=False),
        Column("result", Text, nullable=False),
        Column("before", JSONB),
        Column("after", JSONB),
    )
    Index("audit_subject", table.c.subject_id, table.c.id.desc())
    return table


def revoked_token(metadata: MetaData) -> Table:
    """Add the table of tokens that were revoked without their file, by their hashes."""
    return Table(
        "revoked_token",
        metadata,
        Column("sha256", Text, primary_key=True),
        Column("name", Text, nullable=False),
        now("at"),
        Column("by", Text, nullable=False),
        Column("reason", Text, nullable=False),
    )


def token_use(metadata: MetaData) -> Table:
    """Add the table of the last use of each token on each day (UTC)."""
    table = Table(
        "token_use",
        metadata,
        Column("name", Text),
        Column("day", Date),
        Column("last_at", TIME, nullable=False),
        PrimaryKeyConstraint("name", "day"),
        postgresql_with={"fillfactor": 50},
    )
    Index("token_use_day", table.c.day)
    return table


def alert(metadata: MetaData) -> Table:
    """Add the table of alerts: one open row per deduplication key, and those that were closed. `deleted`: its key has
    left the topic. `confirmed_at`: when the process that raised it last confirmed it, if it is the alert of one."""
    table = Table(
        "alert",
        metadata,
        Column("id", BigInteger, Identity(always=True), primary_key=True),
        Column("dedup_key", Text, nullable=False),
        Column("kind", Text, nullable=False),
        Column("subject_kind", Text, nullable=False),
        Column("subject_id", Text, nullable=False),
        Column("severity", Text, nullable=False),
        Column("body", Text, nullable=False),  # the newest event, as JSON
        now("raised_at"),
        Column("revision", Integer, nullable=False, server_default=text("1")),
        now("published_at"),
        Column("confirmed_at", TIME),
        Column("closed_at", TIME),
        Column("resolution", Text, nullable=False, server_default=text("''")),
        Column("deleted", Boolean, nullable=False, server_default=text("false")),
        Column("silenced_until", TIME),
        Column("silenced_by", Text, nullable=False, server_default=text("''")),
        Column("silence_reason", Text, nullable=False, server_default=text("''")),
    )
    Index("alert_key", table.c.dedup_key, table.c.id)
    Index("alert_open", table.c.dedup_key, unique=True, postgresql_where=table.c.closed_at.is_(None))
    Index("alert_closed", table.c.closed_at, postgresql_where=table.c.closed_at.is_not(None))
    return table


def messaging(metadata: MetaData) -> None:
    """Add the tables of every service: audit, alerts, outbox and sequence numbers, consumer positions, dead letters."""
    audit(metadata)
    alert(metadata)
    revoked_token(metadata)
    token_use(metadata)
    metadata.info["before"] = [CREATE_CLOCK, CREATE_SERVER]
    metadata.info["after"] = [DRAW_INCARNATION, ADVANCE]
    # One row. `server` is the one on which the relay has compared the rows with the log. `former` are earlier ids, and
    # revisions of subjects are above `revision_base`. `requested`: why a person wants a new incarnation.
    Table(
        "incarnation",
        metadata,
        Column("id", Text, nullable=False),
        now("drawn_at"),
        Column("reason", Text, nullable=False, server_default=text("''")),
        Column("former", ARRAY(Text), nullable=False, server_default=text("'{}'")),
        Column("revision_base", BigInteger, nullable=False, server_default=text("0")),
        Column("requested", Text),
        Column("server", Text, nullable=False, server_default=text("''")),
    )
    # `deleted`: the newest event of the subject is a tombstone.
    subject = Table(
        "outbox_subject",
        metadata,
        Column("topic", Text),
        Column("subject", Text),
        Column("revision", BigInteger, nullable=False),
        Column("deleted", Boolean, nullable=False, server_default=text("false")),
        now("created_at"),
        now("touched_at"),
        PrimaryKeyConstraint("topic", "subject"),
    )
    Index("outbox_subject_created", subject.c.created_at)
    outbox = Table(
        "outbox",
        metadata,
        Column("id", BigInteger, Identity(always=True), primary_key=True),
        uuid("event_id", nullable=False),
        Column("topic", Text, nullable=False),
        Column("type", Text, nullable=False),
        Column("subject", Text, nullable=False),
        Column("key", Text),
        Column("revision", BigInteger, nullable=False),
        Column("value", LargeBinary),
        Column("at", TIME, nullable=False),
        Column("traceparent", Text, nullable=False),
        Column("headers", JSONB),
        Column("partition", Integer),
        Column("sequence_number", BigInteger),
        Column("previous_sequence_number", BigInteger),
    )
    number = outbox.c.sequence_number
    Index("outbox_unnumbered", outbox.c.id, postgresql_where=number.is_(None))
    Index("outbox_numbered", outbox.c.topic, outbox.c.partition, number, postgresql_where=number.is_not(None))
    Table(
        "relay_position",
        metadata,
        Column("topic", Text),
        Column("partition", Integer),
        Column("sequence_number", BigInteger, nullable=False),
        PrimaryKeyConstraint("topic", "partition"),
    )
    Table(
        "consumed",
        metadata,
        Column("topic", Text),
        Column("partition", Integer),
        Column("epoch", BigInteger, nullable=False),
        Column("next_offset", BigInteger, nullable=False),
        Column("cluster_id", Text, nullable=False),
        PrimaryKeyConstraint("topic", "partition"),
    )
    Table(
        "seen_sequence",
        metadata,
        Column("topic", Text),
        Column("partition", Integer),
        Column("source", Text),
        Column("sequence_number", BigInteger, nullable=False),
        PrimaryKeyConstraint("topic", "partition", "source"),
    )
    seen = Table(
        "seen_event",
        metadata,
        Column("topic", Text),
        Column("source", Text),
        Column("event_id", Text),
        now("seen_at"),
        PrimaryKeyConstraint("topic", "source", "event_id"),
    )
    Index("seen_event_at", seen.c.seen_at)
    Table(
        "gap",
        metadata,
        Column("id", BigInteger, Identity(always=True), primary_key=True),
        Column("topic", Text, nullable=False),
        Column("partition", Integer, nullable=False),
        Column("kind", Text, nullable=False),
        Column("detail", Text, nullable=False),
        now("at"),
    )
    dead = Table(
        "dead_letter",
        metadata,
        Column("topic", Text),
        Column("partition", Integer),
        Column("offset", BigInteger),
        Column("subject", Text, nullable=False),
        Column("state", Text, CheckConstraint("state IN ('dead', 'parked')"), nullable=False),
        Column("reason", Text, nullable=False),
        Column("key", LargeBinary),
        Column("value", LargeBinary),
        Column("headers", JSONB, nullable=False),
        Column("record_at", TIME, nullable=False),
        now("at"),
        Column("undecoded", Boolean, nullable=False, server_default=text("false")),
        PrimaryKeyConstraint("topic", "partition", "offset"),
    )
    Index("dead_letter_subject", dead.c.topic, dead.c.subject)
    Index("dead_letter_at", dead.c.at)


def leader(metadata: MetaData) -> None:
    """Add the table of a service with a leader: the current leader and when it was last seen (NULL: released)."""
    Table(
        "leader",
        metadata,
        Column("one", Boolean, CheckConstraint("one"), primary_key=True, server_default=text("true")),
        Column("epoch", BigInteger, nullable=False, server_default=text("0")),
        Column("instance", Text, nullable=False, server_default=text("''")),
        Column("since", TIME),
        Column("seen_at", TIME),
        Column("at", Double, nullable=False, server_default=text("0")),  # of the newest turn, in Unix seconds
        Column("seq", BigInteger, nullable=False, server_default=text("0")),  # of the newest turn with a change
        postgresql_with={"fillfactor": 50},
    )
    metadata.info["after"].append("INSERT INTO leader DEFAULT VALUES")


def script(metadata: MetaData) -> str:
    """SQL that creates a schema: the statements in `metadata.info["before"]`, the tables and their indexes, and the
    statements in `metadata.info["after"]`, which are functions, triggers and the rows that it begins with."""
    statements = list(metadata.info["before"])
    for table in metadata.tables.values():  # as declared: PostgreSQL numbers constraints of equal names in that order
        statements.append(str(CreateTable(table).compile(dialect=DIALECT)))
        statements += [
            str(CreateIndex(index).compile(dialect=DIALECT))
            for index in sorted(table.indexes, key=lambda index: str(index.name))
        ]
    statements += metadata.info["after"]
    lines = "".join(f"{statement.strip()};\n" for statement in statements).splitlines()
    return "".join(f"{line.rstrip()}\n".replace("\t", "    ") for line in lines)
