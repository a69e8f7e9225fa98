"""Tables of the provisioner. The baseline of the migrations is generated from them."""

from collections.abc import Collection
from typing import Final

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
    Numeric,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    case,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from slipway_api.events.lifecycle import ASKED_TO_STOP, ENDED, IN_FLIGHT, LEAVING, REGISTERED, WAITING, State
from slipway_common.database.percent import PERCENT_ENCODED
from slipway_common.database.tables import TIME, messaging, now, uuid
from slipway_provisioner.domain.launching import BatchState
from slipway_provisioner.store.admission_tables import admission_tables
from slipway_provisioner.store.balance_tables import balance_table
from slipway_provisioner.store.columns import (
    EMPTY_LIST,
    EMPTY_OBJECT,
    FALSE,
    ONE,
    TRUE,
    ZERO,
    computed,
    empty_text,
    literals,
    required,
)
from slipway_provisioner.store.console_tables import console_table
from slipway_provisioner.store.error_tables import error_tables
from slipway_provisioner.store.functions import (
    CONTACT_PERIOD,
    COUNTERS,
    KEYS,
    LIMITED_KEYS,
    LOCKING,
    SHARED_KEYS,
    SPEND,
    UPTIME,
    WAKE_WAITING,
    WINDOW_KEYS,
)
from slipway_provisioner.store.instance_tables import instance_tables
from slipway_provisioner.store.usage_tables import usage_tables
from slipway_provisioner.store.workspace_tables import workspace_tables

metadata = MetaData()
messaging(metadata)
metadata.info["before"].append(PERCENT_ENCODED)

# One row: the id of this deployment. With that of a batch it is an idempotency token: clouds accept 64 characters.
DRAW_DEPLOYMENT: Final = """
INSERT INTO deployment (id) VALUES ('slipway-' || left(replace(gen_random_uuid()::text, '-', ''), 16))"""
deployment = Table(
    "deployment",
    metadata,
    Column("one", Boolean, CheckConstraint("one"), primary_key=True, server_default=TRUE),
    required("id", Text, CheckConstraint("length(id) BETWEEN 1 AND 27")),
)

# `spec` is the account as declared by `owner`, `spec_digest` its hash. A removed one is deleted once it is unused.
# `credential` is a reference, never a secret.
# `unanswered_since` is the start of the first call without an answer since the last one that was answered. An account
# becomes `unreachable` by a call that is unanswered long after that, until it answers; a person may retire it then.
# `throttled_calls` were throttled from `throttled_since` to `throttled_at`, without a long break; `throttled`: a notice
# says so.
account = Table(
    "account",
    metadata,
    Column("id", Text, primary_key=True),
    required("provider", Text),
    required("region", Text),
    required("identity", Text),
    required("lease_pool_id", Text),
    required("settings", JSONB),
    required("credential", JSONB, server_default=EMPTY_OBJECT),
    required("limits", JSONB, server_default=EMPTY_OBJECT),
    Column("request_timeout_seconds", Double),
    Column("accepted_timeout_seconds", Double),
    Column("reaped_at", TIME),
    required("passes", BigInteger, server_default=ZERO),
    now("passed_at"),
    Column("listed_at", TIME),  # when the listing of the newest completed pass began
    Column("settled_seconds", Double),  # what was called for so long before is listed
    empty_text("listing_problem"),
    required("protected", JSONB, server_default=EMPTY_OBJECT),  # instances that it refuses to terminate, with reasons
    required("refuses_terminations", Boolean, server_default=FALSE),  # of so many that nothing is launched there
    required("mass_unresponsive", Boolean, server_default=FALSE),  # kept until a person confirms
    Column("unanswered_since", TIME),
    required("unreachable", Boolean, server_default=FALSE),
    required("retired", Boolean, server_default=FALSE),
    Column("throttled_since", TIME),
    Column("throttled_at", TIME),
    required("throttled_calls", BigInteger, server_default=ZERO),
    required("throttled", Boolean, server_default=FALSE),
    empty_text("owner"),
    required("spec", JSONB, server_default=EMPTY_OBJECT),
    empty_text("spec_digest"),
    required("removed", Boolean, server_default=FALSE),
    Column("check_began_at", TIME),
    Column("checked_at", TIME),  # when the check began that made the findings
    required("findings", JSONB, server_default=EMPTY_LIST),
)

# `spec` is the pool as declared by `owner`, with its launch configs; `spec_digest`, its hash, is the ETag.
worker_pool = Table(
    "worker_pool",
    metadata,
    Column("id", Text, primary_key=True),
    required("min_capacity", Integer, CheckConstraint("min_capacity >= 0")),
    required("max_capacity", Integer),
    required("scaling_ratio", Text),
    required("mode", Text),
    required("profile", Text),
    required("boot_evidence", Text),
    required("claim_evidence", Text),
    required("on_bad_image", Text),
    required("freeze_after", Integer),
    required("paused", Boolean, server_default=FALSE),
    empty_text("paused_reason"),
    empty_text("paused_by"),
    Column("paused_until", TIME),
    required("frozen", Boolean, server_default=FALSE),
    empty_text("frozen_reason"),
    empty_text("frozen_by"),
    required("deleted", Boolean, server_default=FALSE),
    required("drawn", BigInteger, server_default=ZERO),
    required("revision", BigInteger, server_default=ONE),
    now("swept_at"),
    Column("attempted_at", TIME),
    required(
        "age_alerted", Boolean, server_default=FALSE
    ),  # on workers at their maximum age that nothing could replace
    required("limits", JSONB, server_default=EMPTY_OBJECT),
    empty_text("owner"),
    required("spec", JSONB, server_default=EMPTY_OBJECT),
    empty_text("spec_digest"),
    CheckConstraint("max_capacity >= min_capacity"),
)

Index("worker_pool_deleted", worker_pool.c.id, postgresql_where=worker_pool.c.deleted)
Index("worker_pool_paused", worker_pool.c.paused_until, postgresql_where=worker_pool.c.paused)
Index("worker_pool_swept", worker_pool.c.swept_at, postgresql_where=~worker_pool.c.deleted)

# What was declared of a pool, by its revision then. `changes` were made by `action`: apply, put or rollback.
pool_revision = Table(
    "pool_revision",
    metadata,
    Column("pool_id", Text, ForeignKey(worker_pool.c.id)),
    Column("revision", BigInteger),
    now("at"),
    required("by", Text),
    required("action", Text),
    empty_text("reason"),
    Column("to_revision", BigInteger),
    required("owner", Text),
    required("revisions", JSONB),
    required("spec", JSONB),
    required("spec_digest", Text),
    required("changes", JSONB),
    PrimaryKeyConstraint("pool_id", "revision"),
)

# Name of a launch config: what people keep while its revisions come and go. `current_id` is the revision that it stands
# for, `declared` is false once its declaration leaves it out.
launch_config_name = Table(
    "launch_config_name",
    metadata,
    Column("name", Text, primary_key=True),
    required("pool_id", Text, ForeignKey(worker_pool.c.id)),
    required("current_id", Text),
    required("base_weight", Double),
    required("price_factor", Double),
    Column("max_capacity", Integer),
    required("deadlines", JSONB, server_default=EMPTY_OBJECT),  # as declared, in seconds by name
    required("task_slots", Integer, server_default=ONE),
    required("paused", Boolean, server_default=FALSE),
    empty_text("paused_reason"),
    empty_text("paused_by"),
    Column("paused_until", TIME),
    required("declared", Boolean, server_default=TRUE),
)
Index("launch_config_name_pool", launch_config_name.c.pool_id)
Index("launch_config_name_paused", launch_config_name.c.paused_until, postgresql_where=launch_config_name.c.paused)
# By which the shortest deadline of any worker is found. Written with declarations only.
for _name in ("registration", "first_claim", "idle_despite_demand", "unresponsive"):
    Index(f"launch_config_name_{_name}", launch_config_name.c.deadlines[f"{_name}_seconds"].astext.cast(Double))

# Sources whose pause requests exceeded their share of a pool, until the refused pauses would have ended. The holder of
# the share is a source that operators have named, or empty for all others together.
refused_pause = Table(
    "refused_pause",
    metadata,
    Column("pool_id", Text),
    Column("holder", Text),
    required("until", TIME),
    PrimaryKeyConstraint("pool_id", "holder"),
)

# A revision of a launch config: `id` is "name@" and the head of `digest`, the hash of its immutable body. An active one
# that is not its name's current one launches what the current one does not, by `replaced_by` (natural, rolling or
# rollback), until that one has `proven_at`; then it drains for `drain_seconds`. A draining one launches nothing; an
# archived one has no live worker. `starts_before` are the successful starts of one that has to prove itself again, up
# to then. The indexes that planning uses are without archived revisions, of which there may be many.
#
# The health settings in force are stored with each config: its own profile or its pool's; the others are its pool's.
# `capacity` and `quota_family` are what the provider names otherwise than by account, region, zone and instance type,
# `subnet` is the one that the machines use, if the provider names it, `image` the image by its provider's id.
launch_config = Table(
    "launch_config",
    metadata,
    Column("id", Text, primary_key=True),
    required("name", Text, ForeignKey(launch_config_name.c.name)),
    required("digest", Text),
    required("pool_id", Text, ForeignKey(worker_pool.c.id)),
    required("account_id", Text, ForeignKey(account.c.id)),
    required("region", Text),
    required("zone", Text),
    required("instance_type", Text),
    required("image_revision", Text),
    required("settings", JSONB),
    empty_text("user_data"),
    required("profile", Text),
    required("boot_evidence", Text),
    required("claim_evidence", Text),
    required("on_bad_image", Text),
    required("freeze_after", Integer),
    required("state", Text, CheckConstraint("state IN ('active', 'draining', 'archived')")),
    empty_text("state_reason"),
    empty_text("state_by"),
    empty_text("replaced_by"),
    Column("proven_at", TIME),
    required("starts_before", BigInteger, server_default=ZERO),
    Column("drain_seconds", Double),
    Column("drain_from", TIME),
    Column("drain_until", TIME),
    required("drain_terminate", Boolean, server_default=FALSE),
    required("drain_alerted", Boolean, server_default=FALSE),
    Column("withdrawn_at", TIME),
    now("declared_at"),
    Column("archived_at", TIME),
    required("revision", BigInteger, server_default=ONE),
    empty_text("capacity"),
    empty_text("quota_family"),
    empty_text("subnet"),
    empty_text("image"),
    *(computed(name, expression) for name, expression in KEYS.items()),
)
_NOT_ARCHIVED: Final = launch_config.c.state != "archived"
Index("launch_config_pool", launch_config.c.pool_id, postgresql_where=_NOT_ARCHIVED)
Index("launch_config_of_name", launch_config.c.name)
Index("launch_config_account", launch_config.c.account_id, postgresql_where=_NOT_ARCHIVED)
Index("launch_config_declared", launch_config.c.declared_at, postgresql_where=launch_config.c.state == "active")
Index("launch_config_draining", launch_config.c.drain_from, postgresql_where=launch_config.c.state == "draining")
Index(
    "launch_config_fallback",
    launch_config.c.name,
    postgresql_where=(launch_config.c.state == "active") & (launch_config.c.replaced_by != ""),
)
Index("launch_config_alerted", launch_config.c.id, postgresql_where=launch_config.c.drain_alerted)
Index("launch_config_archived", launch_config.c.archived_at, postgresql_where=launch_config.c.state == "archived")
for _key in KEYS:
    Index(f"launch_config_{_key.removesuffix('_key')}", launch_config.c[_key], postgresql_where=_NOT_ARCHIVED)

metadata.info["after"] += [
    SHARED_KEYS,
    WINDOW_KEYS,
    UPTIME,
    *COUNTERS,
    *SPEND,
    *WAKE_WAITING,
    *LOCKING,
    "INSERT INTO launch_stop_guard DEFAULT VALUES",
    DRAW_DEPLOYMENT,
]

# Time of the newest pass over the deadlines of workers, and of the one before it. Between two passes far apart no
# report could be received: that time is downtime.
deadline_pass = Table(
    "deadline_pass",
    metadata,
    Column("id", Boolean, CheckConstraint("id"), primary_key=True, server_default=TRUE),
    required("at", TIME),
    Column("previous_at", TIME),
)
# Found by its end, so that a deadline costs no more with a year of downtimes.
downtime = Table("downtime", metadata, required("from_at", TIME), Column("until_at", TIME, primary_key=True))

launch_config_outcomes, shared_window, config_usage, shared_usage, waiting_pool, spend_usage = usage_tables(metadata)

# Unconfirmed starts of an image at the time a pool was unfrozen: they do not freeze it again.
forgiven = Table(
    "forgiven",
    metadata,
    Column("pool_id", Text, ForeignKey(worker_pool.c.id)),
    Column("key", Text),
    Column("stage", Text),
    required("unconfirmed", Integer),
    PrimaryKeyConstraint("pool_id", "key", "stage"),
)

weight = Table(
    "weight",
    metadata,
    Column("launch_config_id", Text, primary_key=True),
    required("revision", BigInteger),
    required("record", JSONB),
    now("received_at"),
)
Index("weight_received", weight.c.received_at)

# One row that every start statement locks FOR SHARE and every launch stop FOR UPDATE, so that no start misses a stop.
launch_stop_guard = Table(
    "launch_stop_guard",
    metadata,
    Column("id", Boolean, CheckConstraint("id"), primary_key=True, server_default=text("true")),
)
# Scope `restore`: until a person confirms the state of a restored database; no command that starts launching lifts it.
launch_stop = Table(
    "launch_stop",
    metadata,
    Column("scope", Text, CheckConstraint("scope IN ('all', 'account', 'pool', 'restore')")),
    Column("scope_id", Text),
    required("reason", Text),
    required("by", Text),
    Column("until", TIME),
    now("at"),
    PrimaryKeyConstraint("scope", "scope_id"),
)

# `claimed` is NULL in a report of a source that knows only what waits: the claims of its tasks count instead.
demand = Table(
    "demand",
    metadata,
    Column("pool_id", Text, ForeignKey(worker_pool.c.id)),
    Column("source", Text),
    required("pending", Integer, CheckConstraint("pending >= 0")),
    Column("claimed", Integer, CheckConstraint("claimed >= 0")),
    Column("total", Integer, CheckConstraint("total >= 0")),
    Column("epoch", BigInteger),
    required("observed_at", TIME),
    required("valid_for_seconds", Double),
    Column("pending_since", TIME),
    Column("claimed_seen_at", TIME),
    now("received_at"),
    empty_text("reported_by"),
    empty_text("traceparent"),
    required("alerted", Boolean, server_default=FALSE),  # that it is stale
    Column("ended_at", TIME),
    empty_text("end_reason"),
    PrimaryKeyConstraint("pool_id", "source"),
)
Index("demand_ended", demand.c.ended_at, postgresql_where=demand.c.ended_at.is_not(None))

lease_request, lease, unleased_pace, provider_bucket, launch_limit = admission_tables(metadata)

# `called_at` is the time of the last call of a batch that may have taken effect. It may do so for `called_seconds`, and
# is listed `visibility_seconds` later; an attempt to resolve it lasts at most `timeout_seconds`. `repeatable`: the call
# may be made again with its token. `handle`: the call was accepted, and is polled by it at `poll_at`.
# `charged` machines count towards launch limits: all of the call, until its outcome proves that there are fewer.
# `unproven` of them were never seen, and never proven not to exist. `price` is that of a machine, per hour.
launch_batch = Table(
    "launch_batch",
    metadata,
    uuid("id", primary_key=True),
    required("launch_config_id", Text),
    empty_text("pool_id"),
    required("account_id", Text),
    required("lease_id", Text),
    required("token", Text, unique=True),
    required("body", JSONB),
    required("units", Integer),
    required("state", Text, CheckConstraint(f"state IN ({literals(BatchState)})")),
    empty_text("outcome"),
    required("repeats", Integer, server_default=ZERO),
    now("started_at"),
    required("call_deadline", TIME),
    required("timeout_seconds", Double, server_default=ZERO),
    required("visibility_seconds", Double, server_default=ZERO),
    required("repeatable", Boolean, server_default=FALSE),
    now("called_at"),
    required("called_seconds", Double, server_default=ZERO),
    empty_text("handle"),
    Column("poll_at", TIME),
    Column("known_at", TIME),
    required("charged", Integer, server_default=ZERO),
    required("unproven", Integer, server_default=ZERO),
    Column("price", Numeric),
    required("minute_seconds", Double, server_default=text("60")),
)
Index("launch_batch_accepted", launch_batch.c.poll_at, postgresql_where=text("state = 'calling' AND handle <> ''"))
Index("launch_batch_calling", launch_batch.c.call_deadline, postgresql_where=launch_batch.c.state == BatchState.CALLING)
Index("launch_batch_known", launch_batch.c.known_at, postgresql_where=launch_batch.c.state == BatchState.KNOWN)
_B: Final = launch_batch.c
_CHARGED: Final = (_B.state == BatchState.KNOWN) & (_B.charged > 0)
Index("launch_batch_charged", _B.account_id, _B.known_at, postgresql_where=_CHARGED)
Index("launch_batch_unproven", _B.account_id, _B.known_at, postgresql_where=_B.unproven > 0)

# The keys of a worker's shared windows, whether its account is not called and whether its first claim is awaited are
# copies, so that its counters depend on nothing but its row: those are changed in the transactions of their originals.
worker = Table(
    "worker",
    metadata,
    uuid("id", primary_key=True),
    required("pool_id", Text),
    required("launch_config_id", Text),
    required("account_id", Text),
    required("image_revision", Text),
    required("state", Text),
    uuid("decision_id", nullable=False),
    Column("probe_permit", BigInteger),
    Column("request_id", Text),
    Column("lease_id", Text),
    required("holds_unit", Boolean, server_default=FALSE),
    uuid("batch_id"),
    Column("instance_id", Text),
    Column("token_sha256", Text),
    required("token_used", Boolean, server_default=FALSE),
    Column("not_before", TIME),
    required("requested_at", TIME),
    Column("launched_at", TIME),
    Column("registered_at", TIME),
    Column("first_claimed_at", TIME),
    Column("idle_since", TIME),
    Column("last_seen_at", TIME),
    Column("contact_period", TIME, Computed(CONTACT_PERIOD, persisted=True)),
    Column("stopping_at", TIME),
    required("may_finish", Boolean, server_default=FALSE),
    required("leave_after_task", Boolean, server_default=FALSE),
    Column("drain_until", TIME),
    Column("drain_left_seconds", Double),
    required("termination_refusals", Integer, server_default=ZERO),
    Column("termination_refused_at", TIME),
    Column("stuck_at", TIME),
    empty_text("notice"),
    required("task_slots", Integer, server_default=ONE),
    Column("ended_at", TIME),
    Column("failed_at", TIME),
    Column("termination_requested_at", TIME),
    empty_text("reason"),
    required("traceparent", Text),
    *(empty_text(key) for key in LIMITED_KEYS),
    required("awaits_claim", Boolean, server_default=FALSE),
    required("account_unreachable", Boolean, server_default=FALSE),
    UniqueConstraint("account_id", "instance_id"),
)


def in_states(members: Collection[State]) -> ColumnElement[bool]:
    """Condition that a worker is in one of these states."""
    return worker.c.state.in_([state for state in State if state in members])


FINISHING: Final = in_states(ASKED_TO_STOP) & worker.c.may_finish & worker.c.idle_since.is_(None)
"""Condition that a worker has a task which it claimed when it was asked to stop as an idle one."""

Index("worker_live", worker.c.pool_id, worker.c.launch_config_id, worker.c.state, postgresql_where=~in_states(ENDED))
# By which workers past a deadline are found, each by the time since when it counts.
Index("worker_booting", worker.c.launched_at, postgresql_where=in_states(IN_FLIGHT["boot"]))
Index(
    "worker_idle",
    worker.c.pool_id,
    worker.c.idle_since,
    postgresql_where=in_states(REGISTERED) & worker.c.idle_since.is_not(None),
)
Index("worker_contact", worker.c.contact_period, postgresql_where=~in_states(ENDED))
GRACE_SINCE: Final = func.coalesce(
    case((worker.c.registered_at.is_(None), text("timestamptz '-infinity'"))), worker.c.stopping_at
)
"""Begin of the grace period of a stopping worker. One that never registered cannot be asked to stop, and gets none."""
Index(
    "worker_stopping",
    GRACE_SINCE,
    postgresql_where=in_states(ASKED_TO_STOP) & worker.c.instance_id.is_not(None),
)
DRAINING: Final = ~in_states(ENDED) & worker.c.drain_until.is_not(None)
Index("worker_draining", worker.c.drain_until, postgresql_where=DRAINING)
Index("worker_draining_pool", worker.c.pool_id, postgresql_where=DRAINING)
Index("worker_live_instance", worker.c.account_id, worker.c.instance_id, postgresql_where=~in_states(ENDED))
Index("worker_request", worker.c.request_id, postgresql_where=in_states(IN_FLIGHT["launch"]))  # and for sweeps
Index("worker_waiting", worker.c.pool_id, postgresql_where=in_states(WAITING))
Index("worker_lease", worker.c.lease_id, postgresql_where=in_states(WAITING) & worker.c.lease_id.is_not(None))
Index("worker_batch", worker.c.batch_id)
Index(
    "worker_failed",
    worker.c.launch_config_id,
    worker.c.failed_at.desc(),
    postgresql_where=worker.c.failed_at.is_not(None),
)
Index("worker_leaving", worker.c.pool_id, postgresql_where=in_states(LEAVING))
# Those of which the queue may confirm the first claim.
Index(
    "worker_unclaimed",
    worker.c.pool_id,
    postgresql_where=in_states(REGISTERED) & worker.c.awaits_claim & worker.c.first_claimed_at.is_(None),
)
Index("worker_marked", worker.c.pool_id, postgresql_where=in_states(REGISTERED) & worker.c.leave_after_task)
Index("worker_refused", worker.c.account_id, postgresql_where=~in_states(ENDED) & (worker.c.termination_refusals > 0))
Index("worker_ended", worker.c.ended_at, postgresql_where=in_states(ENDED))
Index(
    "worker_ran",
    worker.c.pool_id,
    worker.c.ended_at,
    postgresql_where=in_states(ENDED) & worker.c.instance_id.is_not(None),
)
# Workers of failed calls, by which the sweep proves the counters of a pool.
Index(
    "worker_unlaunched",
    worker.c.pool_id,
    postgresql_where=in_states(ENDED) & worker.c.launched_at.is_(None) & worker.c.registered_at.is_(None),
)
Index(
    "worker_probe",
    worker.c.launch_config_id,
    worker.c.probe_permit,
    unique=True,
    postgresql_where=worker.c.probe_permit.is_not(None),
)

# `claimed_at` is the time of the claim as the worker wrote it, `reported_at` the same time; `started_at` is clamped to
# its receipt. `counted`: it fits the worker's task slots.
claim = Table(
    "claim",
    metadata,
    uuid("worker_id"),
    Column("source", Text),
    Column("task_id", Text),
    Column("claimed_at", Text),
    required("pool_id", Text),
    required("reported_at", TIME),
    required("started_at", TIME),
    Column("ended_at", TIME),
    required("counted", Boolean, server_default=TRUE),
    PrimaryKeyConstraint("worker_id", "source", "task_id", "claimed_at"),
)
Index("claim_recent", claim.c.pool_id, claim.c.source, claim.c.ended_at)
Index("claim_ended", claim.c.ended_at, postgresql_where=claim.c.ended_at.is_not(None))
LASTED: Final = claim.c.ended_at - claim.c.started_at
ENDED_CLAIM: Final = claim.c.ended_at.is_not(None) & claim.c.counted
Index("claim_longest", claim.c.pool_id, LASTED, postgresql_where=ENDED_CLAIM)
Index("claim_open", claim.c.worker_id, postgresql_where=claim.c.ended_at.is_(None))
Index("claim_worker", claim.c.worker_id, claim.c.ended_at)

unreachable_machine, orphan_instance, missing_instance = instance_tables(metadata)

decision = Table(
    "decision",
    metadata,
    uuid("id", primary_key=True),
    required("pool_id", Text),
    required("at", TIME),
    required("last_at", TIME),
    required("times", Integer, server_default=ONE),
    required("launched", Integer),
    required("reason", Text),
    required("details", JSONB),
)
Index("decision_pool", decision.c.pool_id, decision.c.at.desc())
Index("decision_at", decision.c.at)

# Append-only: a writer never waits for a planner, and a planner deletes only marks whose changes it can see. Found by
# the time at which they are due, since most pools have a mark for later. `dirty_since`: one that was put behind others.
dirty_pool = Table(
    "dirty_pool",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    required("pool_id", Text),
    required("reason", Text),
    now("due_at"),
    Column("dirty_since", TIME),
)
Index("dirty_pool_due", dirty_pool.c.due_at, dirty_pool.c.id)
Index("dirty_pool_pool", dirty_pool.c.pool_id, dirty_pool.c.due_at)

workspace, workspace_document, workspace_listing = workspace_tables(metadata)
console_output = console_table(metadata)
worker_error, worker_error_hour = error_tables(metadata)
pool_balance = balance_table(metadata)
