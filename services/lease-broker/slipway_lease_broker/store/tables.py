"""Tables of the lease-broker. The baseline of the migrations is generated from them."""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Computed,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    and_,
    literal_column,
    or_,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.visitors import replacement_traverse

from slipway_common.database.sql import DIALECT
from slipway_common.database.tables import TIME, messaging
from slipway_lease_broker.domain.ledger import State

metadata = MetaData()
messaging(metadata)

ZERO: Final = text("0")
NO: Final = text("false")


def required(name: str, kind: Any, *constraints: Any, default: Any = None) -> Column[Any]:
    """Column without nulls; `default` is its value in new rows."""
    return Column(name, kind, *constraints, nullable=False, server_default=default)


def check(condition: str) -> CheckConstraint:
    return CheckConstraint(condition)


def condition(clause: ColumnElement[bool], prefix: str = "") -> str:
    """Condition on one table, as text within a long statement; `prefix` is an alias with its dot."""

    def named(element: Any, **_: Any) -> ColumnElement[Any] | None:
        return literal_column(prefix + element.name, element.type) if isinstance(element, Column) else None

    return str(replacement_traverse(clause, {}, named).compile(dialect=DIALECT))


def of_pool() -> Column[str]:
    """Lease pool of a row. Leases and requests do without this foreign key: lease pools are archived, never deleted,
    and every writer of a lease or a request holds the lock on its pool's row, so the check could not fail but would
    slow down each write."""
    return required("lease_pool_id", Text, ForeignKey("lease_pools.id"))


lease_pool = Table(
    "lease_pools",
    metadata,
    Column("id", Text, primary_key=True),
    required("limit_units", Integer, check("limit_units >= 0")),
    required("hold_seconds", Double, check("hold_seconds > 0")),
    required("ttl_seconds", Double, check("ttl_seconds > 0")),
    required("reserve_seconds", Double, check("reserve_seconds > 0")),
    required("policy", JSONB, default="{}"),
    required("owner", Text, default=""),  # document that declares it; empty: imported or archived
    required("revision", Integer, default=text("1")),
    required("archived", Boolean, default=NO),
    required("last_token", BigInteger, default=ZERO),  # newest fencing token
    required("dirty", Boolean, default=text("true")),  # a command arrived since the last decision
    Column("wake_at", TIME),  # when time alone makes a decision due
    Column("decided_at", TIME),
    required("reason", Text, default=""),  # reasons of the last decision that changed something
    Column("limit_in_force", Integer),  # as of the last decision
    required("limit_reason", Text, default=""),
    required("held", JSONB, default="{}"),  # operation → cost of its counted leases
    required("held_units", BigInteger, default=ZERO),  # units of counted leases
    required("waiting_units", BigInteger, default=ZERO),
    required("waiting_requests", Integer, default=ZERO),
    required("waiting_by", JSONB, default="{}"),  # token → its requests that wait, without those over Kafka
    Column("counted_at", TIME),  # idle units are accrued up to this time
    required("idle_unit_seconds", Double, default=ZERO),  # since the last decision, while requests waited
    Column("last_granted_at", TIME),
    Column("verified_at", TIME),  # when its counters were last compared with its rows
    required("paces", JSONB, default="{}"),  # operation → until and interval_seconds of its pacing
    Column("blocked_until", TIME),  # a Retry-After: no counted start before this time
    Column("incomplete_until", TIME),  # the database was restored: until then it may lack leases
    required("virtual_time", Double, default=ZERO),
    Column("adaptive", JSONB),  # the adaptive limit and its times
    required("evidence", JSONB, default="[]"),  # of throttling, received since the last decision
    required("throttle_reports", JSONB, default="[]"),  # of the last reporters
    Column("excess", JSONB),  # of unleased units beyond what their reporter may count
    Column("pinned_reason", Text),  # the declared limit holds until an operator unpins
    Column("drained_reason", Text),  # the limit is 0 until an operator undrains
    Column("derived_units", Integer),
    Column("derived_until", TIME),
    required("derived_alerted", Boolean, default=NO),
)
Index("lease_pools_verified", lease_pool.c.verified_at.nulls_first(), lease_pool.c.id)

request = Table(
    "requests",
    metadata,
    required("lease_pool_id", Text),
    required("id", Text),
    Column("place", BigInteger, Identity(always=True)),  # order of arrival
    required("tenant", Text),
    required("operation", Text),
    required("requested_units", Integer, check("requested_units > 0")),
    required("waiting_units", Integer, check("waiting_units BETWEEN 0 AND requested_units")),
    required("requested_at", TIME),
    required("last_requested_at", TIME),
    Column("queued_at", TIME),  # when LeaseQueued was published
    required("traceparent", Text, default=""),
    required("priority", Integer, check("priority BETWEEN 0 AND 9"), default=ZERO),
    required("whole", Boolean, default=NO),  # never granted in part
    Column("hold_seconds", Double),  # shorter than the pool's
    required("owner", Text),  # name of the token that requested it
    required("since", TIME),  # start of its wait: less age credit, or when its group lets it start
    required("group_name", Text, default=""),
    Column("gang_id", Text),
    required("lapsed", Boolean, default=NO),  # not repeated for too long: skipped until it is repeated
    required("over_kafka", Boolean, default=NO),  # how it came: over Kafka, or over HTTP
    required("holder", Text, default=""),  # who asked for it last
    PrimaryKeyConstraint("lease_pool_id", "id"),
)
WAITING: Final = and_(request.c.waiting_units > 0, ~request.c.lapsed)
ENDED_REQUEST: Final = or_(request.c.waiting_units == 0, request.c.lapsed)
Index("requests_ended", request.c.last_requested_at, postgresql_where=ENDED_REQUEST)
Index(
    "requests_queue",
    *request.c["lease_pool_id", "operation", "tenant", "priority", "group_name", "since", "place"],
    postgresql_where=WAITING,
)
Index(
    "requests_unannounced",
    request.c.lease_pool_id,
    request.c.place,
    postgresql_where=and_(WAITING, request.c.queued_at.is_(None)),
)
# The condition is true of all, and only those that read by this order name it: a plan that was kept while none waited
# would read a queue by this index, and all other queues with it.
WAITING_BY_ARRIVAL: Final = and_(WAITING, request.c.last_requested_at > literal_column("'-infinity'"))
Index("requests_stale", request.c.lease_pool_id, request.c.last_requested_at, postgresql_where=WAITING_BY_ARRIVAL)
Index("requests_of_gang", request.c.gang_id, request.c.lease_pool_id, postgresql_where=request.c.gang_id.is_not(None))

lease = Table(
    "leases",
    metadata,
    Column("id", Text, primary_key=True),
    required("lease_pool_id", Text),
    required("request_id", Text),
    required("fencing_token", BigInteger),
    required("granted_units", Integer, check("granted_units > 0")),
    required("units", Integer, check("units BETWEEN 0 AND granted_units")),  # not yet released
    required("state", Text, check(f"state IN ({', '.join(map(repr, map(str, State)))})")),
    required("granted_at", TIME),
    required("expires_at", TIME),
    required("hold_until", TIME),
    Column("counted_until", TIME),  # of a lost lease
    Column("ended_at", TIME),  # counted against the limit until this is set
    required("traceparent", Text, default=""),
    required("tenant", Text, default=""),
    required("operation", Text, default="launch"),
    required("weight", Integer, default=text("1")),  # cost of a unit at the time of the grant
    required("owner", Text),
    Column("progress", Text),  # as last reported
    Column("progress_until", TIME),  # the lease ends here if its progress does not change
    required("waited_seconds", Double, default=ZERO),
    required("mode", Text, default="enforce"),
    Column("advised_wait_seconds", Double),  # how long it would have waited under enforce
    required("reason", Text, default=""),  # of the grant, then of the end
    Column("gang_id", Text),
    required("replaced", Boolean, default=NO),  # a request replaced it: its age is inherited once
    required("reported_late", Boolean, default=NO),  # its holder reported a result after the hold had ended
    required("extended_at", TIME),  # by its grant, or the last command that moved its deadlines
    required("over_kafka", Boolean, default=NO),  # whether its holder sends its commands over Kafka, or over HTTP
    Column("unleased_by", Text),  # cause of a start without a lease
    required("uncounted_units", Integer, default=ZERO),  # of an unleased start, beyond what counts
    required("holders", JSONB, default="{}"),  # by the name that each gave itself
    Column(
        "deadline",
        TIME,
        Computed("coalesce(counted_until, least(expires_at, hold_until, progress_until))", persisted=True),
    ),
    UniqueConstraint("lease_pool_id", "fencing_token"),
)
COUNTED: Final = lease.c.ended_at.is_(None)
# There is no index on granted_at: leases are granted in the order of their fencing tokens, so that the index of the
# tokens finds the newest ones.
Index("leases_due", lease.c.lease_pool_id, lease.c.deadline, postgresql_where=COUNTED)
Index("leases_of_request", lease.c.lease_pool_id, lease.c.request_id)
Index("leases_ended", lease.c.ended_at, postgresql_where=~COUNTED)

# Until when lease commands were received, per way in, and the downtimes before.
reception = Table(
    "reception",
    metadata,
    Column("way", Text, primary_key=True),  # a partition of the requests, or "http"
    required("received_until", TIME),
    required("downtimes", JSONB, default="[]"),
)

tenant = Table(
    "tenants",
    metadata,
    of_pool(),
    required("tenant", Text),
    required("virtual_finish", Double, default=ZERO),
    required("failures", Integer, default=ZERO),  # in a row
    Column("backoff_until", TIME),
    Column("held_back_until", TIME),  # by what it reported itself
    required("held_back_reason", Text, default=""),
    required("owner", Text, default=""),  # token that named it, if it is not that token's own
    PrimaryKeyConstraint("lease_pool_id", "tenant"),
)

group = Table(
    "groups",
    metadata,
    of_pool(),
    required("name", Text),
    required("size", Integer, check("size > 0")),
    required("spread_seconds", Double),
    required("members", Integer, default=ZERO),  # that have arrived
    required("first_at", TIME),
    Column("last_start_at", TIME),
    PrimaryKeyConstraint("lease_pool_id", "name"),
)

gang = Table(
    "gangs",
    metadata,
    Column("id", Text, primary_key=True),
    required("owner", Text),
    required("size", Integer, check("size > 0")),  # number of lease pools that it requests
    required("requested_at", TIME),
    required("last_requested_at", TIME),
    Column("turn_at", TIME),  # when it could first have started in one of its pools
    Column("done_at", TIME),  # started or given up
)
Index("gangs_ready", gang.c.requested_at, postgresql_where=and_(gang.c.turn_at.is_not(None), gang.c.done_at.is_(None)))

slot = Table(
    "slots",
    metadata,
    Column("name", Text, primary_key=True),
    of_pool(),
    required("state", Text),
    required("owner", Text, default=""),  # empty: available in its state
    required("updated_at", TIME),  # last change, or last update by its owner
    required("userdata", JSONB, default="{}"),
    Column("request_id", Text),  # request that its owner acquired it with
    required("acquired_by", Text, default=""),  # token that its owner acquired it with
    Column("lease_id", Text),  # lease that it is held under; no reference, since leases are pruned
    Column("fencing_token", BigInteger),  # of the last lease
    Column("removed_at", TIME),  # when it left the declared list while owned: it goes with its owner
)
Index("slots_removed", slot.c.lease_pool_id, postgresql_where=slot.c.removed_at.is_not(None))
Index("slots_available", *slot.c["lease_pool_id", "state", "updated_at", "name"], postgresql_where=slot.c.owner == "")
Index("slots_owned", slot.c.lease_pool_id, slot.c.owner, postgresql_where=slot.c.owner != "")

slot_request = Table(
    "slot_requests",
    metadata,
    of_pool(),
    required("state", Text),  # state that the slot is requested in
    required("owner", Text),
    required("id", Text),
    required("requested_by", Text),  # token that requests it
    Column("place", BigInteger, Identity(always=True)),  # order of arrival
    required("slot_count", Integer, check("slot_count > 0")),
    required("lease_request_id", Text),  # its lease request, once a slot was free
    required("last_requested_at", TIME),
    PrimaryKeyConstraint("lease_pool_id", "state", "owner", "id"),
)

entry = Table(
    "history",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    required("lease_pool_id", Text),
    required("at", TIME),
    required("kind", Text),
    Column("lease_id", Text),
    Column("request_id", Text),
    Column("units", Integer),
    required("reason", Text),
    required("actor", Text, default=""),  # caller or service; empty: time, or the broker's own decision
)
Index("history_of_pool", entry.c.lease_pool_id, entry.c.id)
Index("history_of_lease", entry.c.lease_id, entry.c.id, postgresql_where=entry.c.lease_id.is_not(None))
